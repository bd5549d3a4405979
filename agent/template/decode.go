package template

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/suggest"
)

// maxErrors is the most mistakes of a file that are reported at once.
const maxErrors = 20

// A decoder merges a file into a template: values and lists replace those of the
// template, tables are merged, and missing keys change nothing. It collects all errors.
type decoder struct {
	file string
	errs []error
	more int // beyond maxErrors
}

func (d *decoder) addErrorf(n *yaml.Node, format string, args ...any) {
	if len(d.errs) == maxErrors {
		d.more++
		return
	}
	d.errs = append(d.errs, fmt.Errorf("%s:%d: "+format, append([]any{d.file, n.Line}, args...)...))
}

func (d *decoder) joinErrors() error {
	errs := d.errs
	if d.more > 0 {
		errs = append(errs, fmt.Errorf("%s: and %d more", d.file, d.more))
	}
	if len(errs) == 0 {
		return nil
	}
	return atoll.E("template", "", atoll.ErrInvalid, errors.Join(errs...))
}

// reportUnknown reports an unknown name.
func (d *decoder) reportUnknown(at string, n *yaml.Node, name, what, near string, known []string) {
	hint := "the known ones are " + strings.Join(known, ", ")
	if near != "" {
		hint = "the nearest known one is " + near
	}
	if at != "" {
		at += ": "
	}
	d.addErrorf(n, "%sunknown %s %.60q: %s", at, what, name, hint)
}

// A nodeReader reads its own part of a file.
type nodeReader interface {
	readNode(d *decoder, at string, n *yaml.Node)
}

// readTop reads the top table of the file into f.
func (d *decoder) readTop(n *yaml.Node, f *form) { d.readTable("", n, f) }

// readTable reads a table into the struct that p points to.
func (d *decoder) readTable(at string, n *yaml.Node, p any) {
	d.readFields(at, n, reflect.ValueOf(p).Elem())
}

// readText reads a string into the string that p points to.
func (d *decoder) readText(at string, n *yaml.Node, p *string) {
	d.readValue(at, n, reflect.ValueOf(p).Elem())
}

// readValue reads n into v. It ignores a key without a value.
func (d *decoder) readValue(at string, n *yaml.Node, v reflect.Value) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.addErrorf(n, "%s: write it out: & and * are not supported", at)
		return
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	if r, ok := v.Addr().Interface().(nodeReader); ok {
		r.readNode(d, at, n)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.readFields(at, n, v)
	case reflect.Map:
		d.readEntries(at, n, v)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.addErrorf(n, "%s: write a list, like [a, b]", at)
			return
		}
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, c := range n.Content {
			d.readValue(fmt.Sprintf("%s[%d]", at, i), c, list.Index(i))
		}
		v.Set(list)
	default:
		if n.Kind != yaml.ScalarNode {
			d.addErrorf(n, "%s: want one value, not a list or table", at)
		} else if err := parseScalar(n.Value, v); err != nil {
			d.addErrorf(n, "%s: %w", at, err)
		}
	}
}

// eachKey passes each key of a table and its value to take. It reports repeated keys.
func (d *decoder) eachKey(at string, n *yaml.Node, take func(k, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.addErrorf(n, "%s: write keys and values below it", at)
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		line, twice := first[k.Value]
		switch {
		case k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge":
			d.addErrorf(k, "%s: a key must be a word", cmp.Or(at, "the file"))
		case twice:
			d.addErrorf(k, "%q is set twice, first in line %d", joinPath(at, k.Value), line)
		default:
			first[k.Value] = k.Line
			take(k, v)
		}
	}
}

// readFields reads a table into the struct v.
func (d *decoder) readFields(at string, n *yaml.Node, v reflect.Value) {
	fields := map[string]reflect.Value{}
	fieldsOf(v, fields)
	known := slices.Sorted(maps.Keys(fields))
	d.eachKey(at, n, func(k, val *yaml.Node) {
		if field, ok := fields[k.Value]; ok {
			d.readValue(joinPath(at, k.Value), val, field)
			return
		}
		if at == "" {
			if in := parentOf(k.Value); in != "" {
				d.addErrorf(k, "unknown key %q: it belongs below %s", k.Value, in)
				return
			}
		}
		d.reportUnknown(at, k, k.Value, "key", suggest.Closest(k.Value, known), known)
	})
}

// parentOf returns the table that a misplaced key belongs to; "" if there is none, or
// more than one.
func parentOf(key string) string {
	in := ""
	for name, v := range map[string]any{"spec": &atoll.Spec{}, "agent": &Agent{}, "hooks": &hooksForm{}} {
		fields := map[string]reflect.Value{}
		fieldsOf(reflect.ValueOf(v).Elem(), fields)
		if _, ok := fields[key]; !ok {
			continue
		}
		if in != "" {
			return ""
		}
		in = name
	}
	return in
}

// fieldsOf collects the fields of the struct v by their names in YAML, or else in JSON.
func fieldsOf(v reflect.Value, fields map[string]reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, ok := f.Tag.Lookup("yaml")
		if !ok {
			tag = f.Tag.Get("json")
		}
		name, _, _ := strings.Cut(tag, ",")
		switch {
		case tag == "inline":
			fieldsOf(v.Field(i).Elem(), fields)
		case name != "" && name != "-":
			fields[name] = v.Field(i)
		}
	}
}

// readEntries reads a table into the map v, keeping its other entries.
func (d *decoder) readEntries(at string, n *yaml.Node, v reflect.Value) {
	d.eachKey(at, n, func(k, val *yaml.Node) {
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		d.readValue(joinPath(at, k.Value), val, elem)
		v.SetMapIndex(reflect.ValueOf(k.Value), elem)
	})
}

func joinPath(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// parseScalar parses text into v.
func parseScalar(text string, v reflect.Value) error {
	switch p := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		return p.UnmarshalText([]byte(text))
	case *atoll.Bytes:
		n, err := atoll.ParseBytes(text)
		*p = n
		return err
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%.60q: write true or false", text)
		}
		v.SetBool(text == "true")
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || n != n || n-n != 0 { // infinite
			return fmt.Errorf("%.60q: write a number", text)
		}
		v.SetFloat(n)
	case reflect.Uint16:
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%.60q: write a whole number", text)
		}
		v.SetUint(n)
	case reflect.Int:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%.60q: write a whole number", text)
		}
		v.SetInt(n)
	default:
		panic(fmt.Sprintf("template: cannot decode values of type %s", v.Type()))
	}
	return nil
}

// readNode implements nodeReader.
func (s *Secret) readNode(d *decoder, at string, n *yaml.Node) {
	var f struct {
		From     string `yaml:"from"`
		Optional bool   `yaml:"optional"`
	}
	if n.Kind == yaml.ScalarNode {
		d.readText(at, n, &f.From)
	} else {
		d.readTable(at, n, &f)
	}
	secret, err := NewSecret(f.From, f.Optional)
	if err != nil {
		d.addErrorf(n, "%s: %w", at, err)
	}
	*s = secret
}
