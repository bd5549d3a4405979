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

// An item is one of a table.
type item = map[string]types.AttributeValue

// textOf is a text as an attribute: nil, which is none, if it is empty.
func textOf(s string) types.AttributeValue {
	if s == "" {
		return nil
	}
	return &types.AttributeValueMemberS{Value: s}
}

func numberOf(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

// flagOf is nil, which is none, if it is false.
func flagOf(b bool) types.AttributeValue {
	if !b {
		return nil
	}
	return &types.AttributeValueMemberBOOL{Value: true}
}

// timeOf is a time in microseconds since 1970: nil, which is none, if it is zero.
func timeOf(t time.Time) types.AttributeValue {
	if t.IsZero() {
		return nil
	}
	return numberOf(t.UnixMicro())
}

func fromMicro(t int64) time.Time { return time.UnixMicro(t).UTC() }

// mapOf is an item in an item, without what is nil.
func mapOf(m item) types.AttributeValue { return &types.AttributeValueMemberM{Value: without(m)} }

// without drops what is nil.
func without(m item) item {
	maps.DeleteFunc(m, func(_ string, v types.AttributeValue) bool { return v == nil })
	return m
}

// fields reads the attributes of an item, of which each may be missing. What is not as
// it was written is noted.
type fields struct {
	m   item
	err *error
}

func fieldsOf(m item) fields { return fields{m, new(error)} }

func (f fields) bad(name string) {
	if *f.err == nil {
		*f.err = atoll.Errorf("", "", atoll.ErrInternal, "what is kept is damaged: its attribute %q is not what was written", name)
	}
}

func (f fields) has(name string) bool { return f.m[name] != nil }

func (f fields) text(name string) string {
	switch v := f.m[name].(type) {
	case nil:
	case *types.AttributeValueMemberS:
		return v.Value
	default:
		f.bad(name)
	}
	return ""
}

func (f fields) number(name string) int64 {
	switch v := f.m[name].(type) {
	case nil:
	case *types.AttributeValueMemberN:
		n, err := strconv.ParseInt(v.Value, 10, 64)
		if err != nil {
			f.bad(name)
		}
		return n
	default:
		f.bad(name)
	}
	return 0
}

// flag reports whether there is an attribute, which is only where it is true.
func (f fields) flag(name string) bool {
	switch v := f.m[name].(type) {
	case nil:
	case *types.AttributeValueMemberBOOL:
		return v.Value
	default:
		f.bad(name)
	}
	return false
}

func (f fields) time(name string) time.Time {
	if !f.has(name) {
		return time.Time{}
	}
	return fromMicro(f.number(name))
}

func (f fields) bytes(name string) []byte {
	v, ok := f.m[name].(*types.AttributeValueMemberB)
	if !ok {
		f.bad(name)
		return nil
	}
	return v.Value
}

// sub reads an item in the item.
func (f fields) sub(name string) fields {
	switch v := f.m[name].(type) {
	case nil:
	case *types.AttributeValueMemberM:
		return fields{v.Value, f.err}
	default:
		f.bad(name)
	}
	return fields{nil, f.err}
}

// list reads a list of items in the item.
func (f fields) list(name string) []fields {
	if !f.has(name) {
		return nil
	}
	v, ok := f.m[name].(*types.AttributeValueMemberL)
	if !ok {
		f.bad(name)
		return nil
	}
	var all []fields
	for _, x := range v.Value {
		m, ok := x.(*types.AttributeValueMemberM)
		if !ok {
			f.bad(name)
			return nil
		}
		all = append(all, fields{m.Value, f.err})
	}
	return all
}

// An expr is what a request says of attributes: what is to be changed, and on which
// condition.
type expr struct {
	names         map[string]string // by placeholder
	values        item
	sets, removes []string
	conds         []string
}

// name is the placeholder of an attribute, or of one in another.
func (e *expr) name(path ...string) string {
	if e.names == nil {
		e.names = map[string]string{}
	}
	var all []string
	for _, name := range path {
		p := placeholder(name, e.names)
		e.names[p] = name
		all = append(all, p)
	}
	return strings.Join(all, ".")
}

// placeholder is the one that a name has already, or else a new one.
func placeholder(name string, names map[string]string) string {
	for p, n := range names {
		if n == name {
			return p
		}
	}
	return fmt.Sprint("#n", len(names))
}

// value is the placeholder of a value.
func (e *expr) value(v types.AttributeValue) string {
	if e.values == nil {
		e.values = item{}
	}
	p := fmt.Sprint(":v", len(e.values))
	e.values[p] = v
	return p
}

// set sets an attribute, or removes it if v is nil.
func (e *expr) set(v types.AttributeValue, path ...string) {
	if v == nil {
		e.remove(path...)
		return
	}
	e.setTo(e.value(v), path...)
}

// setAll sets attributes, or removes those that are nil.
func (e *expr) setAll(it item) {
	for name, v := range it {
		e.set(v, name)
	}
}

// setTo sets an attribute to what an expression says.
func (e *expr) setTo(text string, path ...string) {
	e.sets = append(e.sets, e.name(path...)+" = "+text)
}

// add adds n to a number that is there.
func (e *expr) add(n int64, path ...string) {
	e.setTo(e.name(path...)+" + "+e.value(numberOf(n)), path...)
}

func (e *expr) remove(path ...string) { e.removes = append(e.removes, e.name(path...)) }

// exists, absent and equals are conditions; all have to hold.
func (e *expr) exists(path ...string) {
	e.conds = append(e.conds, "attribute_exists("+e.name(path...)+")")
}

func (e *expr) absent(path ...string) {
	e.conds = append(e.conds, "attribute_not_exists("+e.name(path...)+")")
}

func (e *expr) equals(v types.AttributeValue, path ...string) {
	e.conds = append(e.conds, e.name(path...)+" = "+e.value(v))
}

// update is what is to be changed.
func (e *expr) update() string {
	var all []string
	if len(e.sets) > 0 {
		all = append(all, "SET "+strings.Join(e.sets, ", "))
	}
	if len(e.removes) > 0 {
		all = append(all, "REMOVE "+strings.Join(e.removes, ", "))
	}
	return strings.Join(all, " ")
}

// condition is all conditions, nil if there are none.
func (e *expr) condition() *string {
	if len(e.conds) == 0 {
		return nil
	}
	text := strings.Join(e.conds, " AND ")
	return &text
}
