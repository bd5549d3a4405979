package dynamo

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/seed46cd37a8/atoll"
)

// An item is the attributes of a row of a table.
type item = map[string]types.AttributeValue

// textOf returns s as an attribute, or nil if s is empty. A nil attribute is not stored.
func textOf(s string) types.AttributeValue {
	if s == "" {
		return nil
	}
	return &types.AttributeValueMemberS{Value: s}
}

// numberOf returns n as an attribute.
func numberOf(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

// flagOf returns true as an attribute, or nil if b is false.
func flagOf(b bool) types.AttributeValue {
	if !b {
		return nil
	}
	return &types.AttributeValueMemberBOOL{Value: true}
}

// timeOf returns t as an attribute in microseconds since 1970, or nil if t is zero.
func timeOf(t time.Time) types.AttributeValue {
	if t.IsZero() {
		return nil
	}
	return numberOf(t.UnixMicro())
}

// fromMicro returns the time of t microseconds since 1970, in UTC.
func fromMicro(t int64) time.Time { return time.UnixMicro(t).UTC() }

// mapOf returns m as an attribute, without nil attributes.
func mapOf(m item) types.AttributeValue { return &types.AttributeValueMemberM{Value: dropNil(m)} }

// dropNil removes nil attributes from m and returns it.
func dropNil(m item) item {
	maps.DeleteFunc(m, func(_ string, v types.AttributeValue) bool { return v == nil })
	return m
}

// fields reads the attributes of an item. Each attribute may be missing. An attribute of an unexpected type sets err.
type fields struct {
	m   item
	err *error
}

func fieldsOf(m item) fields { return fields{m, new(error)} }

// reportDamage sets the error, unless there is one.
func (f fields) reportDamage(name string) {
	if *f.err == nil {
		*f.err = atoll.Errorf("", "", atoll.ErrInternal, "the record is damaged: attribute %q has an unexpected type or value", name)
	}
}

func (f fields) hasField(name string) bool { return f.m[name] != nil }

func (f fields) textField(name string) string {
	switch v := f.m[name].(type) {
	case nil:
	case *types.AttributeValueMemberS:
		return v.Value
	default:
		f.reportDamage(name)
	}
	return ""
}

func (f fields) numberField(name string) int64 {
	switch v := f.m[name].(type) {
	case nil:
	case *types.AttributeValueMemberN:
		n, err := strconv.ParseInt(v.Value, 10, 64)
		if err != nil {
			f.reportDamage(name)
		}
		return n
	default:
		f.reportDamage(name)
	}
	return 0
}

// boolField returns a boolean attribute, false if it is missing.
func (f fields) boolField(name string) bool {
	switch v := f.m[name].(type) {
	case nil:
	case *types.AttributeValueMemberBOOL:
		return v.Value
	default:
		f.reportDamage(name)
	}
	return false
}

func (f fields) timeField(name string) time.Time {
	if !f.hasField(name) {
		return time.Time{}
	}
	return fromMicro(f.numberField(name))
}

func (f fields) bytesField(name string) []byte {
	v, ok := f.m[name].(*types.AttributeValueMemberB)
	if !ok {
		f.reportDamage(name)
		return nil
	}
	return v.Value
}

// subFields reads a nested item.
func (f fields) subFields(name string) fields {
	switch v := f.m[name].(type) {
	case nil:
	case *types.AttributeValueMemberM:
		return fields{v.Value, f.err}
	default:
		f.reportDamage(name)
	}
	return fields{nil, f.err}
}

// listFields reads a list of nested items.
func (f fields) listFields(name string) []fields {
	if !f.hasField(name) {
		return nil
	}
	v, ok := f.m[name].(*types.AttributeValueMemberL)
	if !ok {
		f.reportDamage(name)
		return nil
	}
	var all []fields
	for _, x := range v.Value {
		m, ok := x.(*types.AttributeValueMemberM)
		if !ok {
			f.reportDamage(name)
			return nil
		}
		all = append(all, fields{m.Value, f.err})
	}
	return all
}

// An expr is the expressions of a request: its updates and its conditions.
type expr struct {
	names         map[string]string // by placeholder
	values        item
	sets, removes []string
	conds         []string
}

// namePlaceholder returns the placeholder of an attribute, or of a nested one.
func (e *expr) namePlaceholder(path ...string) string {
	if e.names == nil {
		e.names = map[string]string{}
	}
	var all []string
	for _, name := range path {
		p := findPlaceholder(name, e.names)
		e.names[p] = name
		all = append(all, p)
	}
	return strings.Join(all, ".")
}

// findPlaceholder returns the placeholder of a name in names, or an unused one.
func findPlaceholder(name string, names map[string]string) string {
	for p, n := range names {
		if n == name {
			return p
		}
	}
	return fmt.Sprint("#n", len(names))
}

// valuePlaceholder returns a placeholder for v.
func (e *expr) valuePlaceholder(v types.AttributeValue) string {
	if e.values == nil {
		e.values = item{}
	}
	p := fmt.Sprint(":v", len(e.values))
	e.values[p] = v
	return p
}

// setField sets an attribute, or removes it if v is nil.
func (e *expr) setField(v types.AttributeValue, path ...string) {
	if v == nil {
		e.removeField(path...)
		return
	}
	e.setToExpr(e.valuePlaceholder(v), path...)
}

// setFields sets attributes, and removes those that are nil.
func (e *expr) setFields(it item) {
	for name, v := range it {
		e.setField(v, name)
	}
}

// setToExpr sets an attribute to the value of an expression.
func (e *expr) setToExpr(text string, path ...string) {
	e.sets = append(e.sets, e.namePlaceholder(path...)+" = "+text)
}

// addNumber adds n to a number that exists.
func (e *expr) addNumber(n int64, path ...string) {
	e.setToExpr(e.namePlaceholder(path...)+" + "+e.valuePlaceholder(numberOf(n)), path...)
}

func (e *expr) removeField(path ...string) { e.removes = append(e.removes, e.namePlaceholder(path...)) }

// requireExists, requireAbsent and requireEqual add conditions, all of which must hold.
func (e *expr) requireExists(path ...string) {
	e.conds = append(e.conds, "attribute_exists("+e.namePlaceholder(path...)+")")
}

func (e *expr) requireAbsent(path ...string) {
	e.conds = append(e.conds, "attribute_not_exists("+e.namePlaceholder(path...)+")")
}

func (e *expr) requireEqual(v types.AttributeValue, path ...string) {
	e.conds = append(e.conds, e.namePlaceholder(path...)+" = "+e.valuePlaceholder(v))
}

// updateText returns the update expression.
func (e *expr) updateText() string {
	var all []string
	if len(e.sets) > 0 {
		all = append(all, "SET "+strings.Join(e.sets, ", "))
	}
	if len(e.removes) > 0 {
		all = append(all, "REMOVE "+strings.Join(e.removes, ", "))
	}
	return strings.Join(all, " ")
}

// conditionText returns the condition expression, or nil if there are no conditions.
func (e *expr) conditionText() *string {
	if len(e.conds) == 0 {
		return nil
	}
	text := strings.Join(e.conds, " AND ")
	return &text
}
