package mcpconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// A document is the text of a JSON file, which may have comments and trailing commas.
type document struct {
	text []byte
	root hujson.Value
}

// utf8BOM is at the beginning of files of some Windows programs.
var utf8BOM = []byte("\ufeff")

// parseDocument parses text; an empty one is an empty object.
func parseDocument(text []byte) (*document, error) {
	root, err := hujson.Parse(slices.Clone(text))
	if err != nil {
		return nil, fmt.Errorf("not valid JSON, not even with comments: %w", err)
	}
	if _, ok := root.Value.(*hujson.Object); !ok {
		return nil, errors.New("not a JSON object")
	}
	return &document{text, root}, nil
}

// findMember returns the index of the last member of a name, -1 if there is none.
func findMember(o *hujson.Object, name string) int {
	for i := len(o.Members) - 1; i >= 0; i-- {
		if lit, ok := o.Members[i].Name.Value.(hujson.Literal); ok && lit.String() == name {
			return i
		}
	}
	return -1
}

// editJSON returns text with the member at a path set to what change returns, or removed if that is nil.
// change gets the member that exists, nil if there is none.
func editJSON(text []byte, path []string, change func(old *Entry) (any, error)) ([]byte, error) {
	bom := []byte{}
	if bytes.HasPrefix(text, utf8BOM) {
		bom, text = utf8BOM, text[len(utf8BOM):]
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	doc, err := parseDocument(text)
	if err != nil {
		return nil, err
	}
	before, err := decodeObject(text)
	if err != nil {
		return nil, err
	}
	old, err := doc.entryAt(path)
	if err != nil {
		return nil, err
	}
	value, err := change(old)
	if err != nil {
		return nil, err
	}
	edited := text
	switch {
	case value != nil:
		edited, err = doc.setMember(path, value)
	case old != nil:
		edited, err = doc.removeMember(path)
	}
	if err != nil {
		return nil, err
	}
	after, err := decodeObject(edited)
	if err == nil {
		err = checkEdit(before, after, path, value)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot edit %s: edit the file yourself: %w", strings.Join(path, "."), err)
	}
	return slices.Concat(bom, edited), nil
}

// decodeObject decodes JSON with comments.
func decodeObject(text []byte) (all map[string]any, err error) {
	plain, err := hujson.Standardize(slices.Clone(text))
	if err == nil {
		err = json.Unmarshal(plain, &all)
	}
	return all, err
}

// checkEdit returns an error unless after is before with the value at the path; the path has two names.
func checkEdit(before, after map[string]any, path []string, value any) error {
	table := func(of map[string]any) map[string]any {
		rest, _ := of[path[0]].(map[string]any)
		delete(of, path[0])
		return rest
	}
	was, is := table(before), table(after)
	delete(was, path[1])
	got := is[path[1]]
	delete(is, path[1])
	var want any
	if value != nil {
		data, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &want); err != nil {
			return err
		}
	}
	if !reflect.DeepEqual(before, after) || len(was) != len(is) || len(was) > 0 && !reflect.DeepEqual(was, is) || !reflect.DeepEqual(got, want) {
		return errors.New("the file has an unusual form")
	}
	return nil
}

// entryAt decodes the member at a path; nil if there is none.
func (d *document) entryAt(path []string) (*Entry, error) {
	v := d.root
	for i, name := range path {
		o, ok := v.Value.(*hujson.Object)
		if !ok {
			return nil, fmt.Errorf("%s is not an object", strings.Join(path[:i], "."))
		}
		at := findMember(o, name)
		if at < 0 {
			return nil, nil
		}
		v = o.Members[at].Value
	}
	if _, ok := v.Value.(*hujson.Object); !ok {
		return nil, fmt.Errorf("%s is not an object", strings.Join(path, "."))
	}
	plain, err := hujson.Standardize(slices.Clone(d.text[v.StartOffset:v.EndOffset]))
	if err != nil {
		return nil, err
	}
	var e Entry
	_ = json.Unmarshal(plain, &e) // an entry of another form is not ours
	return &e, nil
}

// setMember returns the text with the member at a path set to a value.
func (d *document) setMember(path []string, value any) ([]byte, error) {
	v := d.root
	for i, name := range path {
		o, ok := v.Value.(*hujson.Object)
		if !ok {
			return nil, fmt.Errorf("%s is not an object", strings.Join(path[:i], "."))
		}
		at := findMember(o, name)
		if at < 0 {
			for _, missing := range slices.Backward(path[i+1:]) {
				value = map[string]any{missing: value}
			}
			return d.addMember(v, o, name, value)
		}
		v = o.Members[at].Value
	}
	text, err := d.renderValue(value, d.lineIndent(v.StartOffset))
	return slices.Concat(d.text[:v.StartOffset], text, d.text[v.EndOffset:]), err
}

// addMember returns the text with a new member at the end of an object.
func (d *document) addMember(v hujson.Value, o *hujson.Object, name string, value any) ([]byte, error) {
	brace := v.EndOffset - 1 // of the object's end
	outer := d.lineIndent(brace)
	if line := d.text[d.lineStart(brace):brace]; len(bytes.TrimSpace(line)) > 0 {
		outer = d.lineIndent(v.StartOffset)
	}
	inner := outer + d.indentUnit()
	comma, end, trailing := "", v.StartOffset+1, ""
	if n := len(o.Members); n > 0 {
		last := o.Members[n-1]
		if start := last.Name.StartOffset; len(bytes.TrimSpace(d.text[d.lineStart(start):start])) == 0 {
			inner = d.lineIndent(start)
		}
		end, comma = last.Value.EndOffset, ","
		if last.Value.AfterExtra != nil || d.hasComma(end, brace, last.Value.AfterExtra) {
			comma, trailing = "", ","
		}
	}
	text, err := d.renderValue(value, inner)
	if err != nil {
		return nil, err
	}
	key, err := json.Marshal(name)
	if err != nil {
		return nil, err
	}
	at := end + len(bytes.TrimRight(d.text[end:brace], " \t\r\n")) // behind comments
	after := d.text[at:brace]
	if !bytes.ContainsRune(after, '\n') {
		after = []byte(lineEnd(d.text) + outer)
	}
	return slices.Concat(d.text[:end], []byte(comma), d.text[end:at], []byte(lineEnd(d.text)+inner), key, []byte(": "), text, []byte(trailing), after, d.text[brace:]), nil
}

// hasComma reports whether a comma follows the last value of an object, which ends at end.
func (d *document) hasComma(end, brace int, extra hujson.Extra) bool {
	at := end + len(extra)
	return at < brace && d.text[at] == ','
}

// removeMember returns the text without the member at a path, and without its table if nothing else is in it.
func (d *document) removeMember(path []string) ([]byte, error) {
	v := d.root
	for i, name := range path {
		o := v.Value.(*hujson.Object) // entryAt has checked it
		at := findMember(o, name)
		next := o.Members[at].Value
		inner, ok := next.Value.(*hujson.Object)
		if last := i == len(path)-1; last || ok && len(inner.Members) == 1 && d.isBlank(next, inner) {
			return d.cutMember(v, o, at), nil
		}
		v = next
	}
	return d.text, nil
}

// isBlank reports whether an object with one member has no comments.
func (d *document) isBlank(v hujson.Value, o *hujson.Object) bool {
	only := o.Members[0]
	around := slices.Concat(d.text[v.StartOffset+1:only.Name.StartOffset], d.text[only.Value.EndOffset:v.EndOffset-1])
	return len(bytes.Trim(around, " \t\r\n,")) == 0
}

// cutMember returns the text without a member of an object.
func (d *document) cutMember(v hujson.Value, o *hujson.Object, at int) []byte {
	m := o.Members[at]
	start, end := m.Name.StartOffset, m.Value.EndOffset
	if i := end + len(m.Value.AfterExtra); at < len(o.Members)-1 || d.hasComma(end, v.EndOffset-1, m.Value.AfterExtra) {
		if comma := bytes.IndexByte(d.text[i:], ','); comma == 0 {
			end = i + 1
		}
	}
	if line := d.lineStart(start); len(bytes.TrimSpace(d.text[line:start])) == 0 && line > v.StartOffset { // whole lines
		rest := d.text[end:]
		if n := bytes.IndexByte(rest, '\n'); n >= 0 && len(bytes.TrimSpace(rest[:n])) == 0 {
			start, end = line, end+n+1
		}
	}
	head := d.text[:start]
	if at > 0 && at == len(o.Members)-1 { // the comma of the member before
		before := o.Members[at-1].Value
		if comma := before.EndOffset + len(before.AfterExtra); comma < start && d.text[comma] == ',' && !d.hasComma(m.Value.EndOffset, v.EndOffset-1, m.Value.AfterExtra) {
			head = slices.Concat(d.text[:comma], d.text[comma+1:start])
		}
	}
	tail := d.text[end:]
	if len(o.Members) == 1 && len(bytes.TrimSpace(d.text[v.StartOffset+1:start])) == 0 && len(bytes.TrimSpace(d.text[end:v.EndOffset-1])) == 0 {
		head, tail = d.text[:v.StartOffset+1], d.text[v.EndOffset-1:] // {}
	}
	return slices.Concat(head, tail)
}

// renderValue returns a value as JSON whose further lines have an indent.
func (d *document) renderValue(value any, indent string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent(indent, d.indentUnit())
	if err := enc.Encode(value); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(bytes.TrimSpace(b.Bytes()), []byte("\n"), []byte(lineEnd(d.text))), nil
}

// lineStart returns the beginning of the line of an offset.
func (d *document) lineStart(at int) int { return bytes.LastIndexByte(d.text[:at], '\n') + 1 }

// lineIndent returns the white space at the beginning of the line of an offset.
func (d *document) lineIndent(at int) string {
	line := d.text[d.lineStart(at):]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// indentUnit returns the indent of the first member of the file, two spaces if there is none.
func (d *document) indentUnit() string {
	if o, ok := d.root.Value.(*hujson.Object); ok && len(o.Members) > 0 {
		if start := o.Members[0].Name.StartOffset; d.lineStart(start) > d.root.StartOffset {
			if unit := d.lineIndent(start); unit != "" {
				return unit
			}
		}
	}
	return "  "
}
