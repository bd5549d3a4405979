package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A Change sets a setting in the file, or removes it.
type Change struct {
	Key    string   // the setting; without Values also a table
	Values []string // the value, or the values of a list; nil removes the setting or the table
}

// Edit applies changes to the file of src, all or none. It creates the file if it is missing. Comments, order and other
// settings of the file remain. It writes nothing if the file would have a mistake afterwards, or if the file is written
// in a way that it cannot change. Kinds: ErrInvalid.
func Edit(src Source, changes ...Change) error {
	return editFile(src, func(data []byte) ([]byte, error) {
		for _, c := range changes {
			value, err := c.parseValue(src)
			if err == nil {
				var changed []byte
				if changed, err = editYAML(data, strings.Split(c.Key, "."), value); err == nil {
					data = changed
				}
			}
			if errors.Is(err, errNotYAML) {
				return nil, Check(src, data) // which says where
			}
			if err != nil {
				return nil, atoll.E("config", "", atoll.ErrInvalid, err)
			}
		}
		return data, nil
	})
}

// Replace replaces the whole file of src by data, unless data has mistakes or the file is no longer old. Kinds:
// ErrInvalid.
func Replace(src Source, old, data []byte) error {
	return editFile(src, func(now []byte) ([]byte, error) {
		if !bytes.Equal(now, old) {
			return nil, atoll.Errorf("config", "", atoll.ErrInvalid, "another program has changed the file meanwhile: edit it again")
		}
		return data, nil
	})
}

// Check returns the mistakes that data would have as the content of the file of src. Kinds: ErrInvalid.
func Check(src Source, data []byte) error {
	_, err := loadWith(src, data)
	return err
}

// editFile replaces the content of the file of src by what edit returns, if that has no mistakes.
func editFile(src Source, edit func(data []byte) ([]byte, error)) error {
	path, err := Path(src)
	if err != nil {
		return err
	}
	var refused error
	_, err = fsutil.EditFile(path, 0o600, func(data []byte) ([]byte, error) {
		if data, refused = edit(data); refused == nil {
			refused = Check(src, data)
		}
		return data, refused
	})
	return cmp.Or(refused, err) // the first has the name of the file where it matters
}

// parseValue checks the key and the values, and returns the value as YAML; nil removes the key.
func (c Change) parseValue(src Source) (*yaml.Node, error) {
	env := parseEnv(src.Env)
	s := schemaOf(defaultConfig(env), homeDir(env))
	if table, rest, nested := strings.Cut(c.Key, "."); nested {
		name, _, _ := strings.Cut(rest, ".")
		if err := s.addNamedTable(table + "." + name); err != nil {
			return nil, err
		}
	}
	l := s.findSetting(c.Key)
	switch {
	case c.Values == nil && (l != nil || s.isTable(c.Key)):
		return nil, nil
	case s.isTable(c.Key):
		return nil, fmt.Errorf("%s is a table: set one of its keys, as in atoll config set %s", c.Key, s.exampleKey(c.Key))
	case l == nil:
		return nil, fmt.Errorf("unknown key %q: %s", c.Key, suggestKey(c.Key, s.listKeys()))
	}
	var texts []string
	for _, value := range c.Values {
		texts = append(texts, l.splitList(value)...)
	}
	if err := l.setValue(texts, "default", s.home); err != nil {
		return nil, err
	}
	if l.field.Kind() != reflect.Slice {
		return l.scalarNode(texts[0]), nil
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, text := range texts {
		list.Content = append(list.Content, l.scalarNode(text))
	}
	return list, nil
}

// exampleKey returns a key below a table.
func (s *schema) exampleKey(table string) string {
	if _, named := s.named[table]; named {
		table += ".NAME"
		_ = s.addNamedTable(table) // NAME is a valid name
	}
	for _, l := range s.settings {
		if strings.HasPrefix(l.key, table+".") {
			return l.key + " VALUE"
		}
	}
	return table + ".KEY VALUE"
}

// scalarNode returns a valid value of l as YAML. It has quotes if it would otherwise be of another type.
func (l *setting) scalarNode(text string) *yaml.Node {
	switch l.field.Kind() {
	case reflect.Bool, reflect.Int, reflect.Float64:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// editYAML returns data with another value of the key, or without the key if value is nil. It changes only the lines of
// the key, and compares the values before and after.
func editYAML(data []byte, key []string, value *yaml.Node) ([]byte, error) {
	want, err := flattenYAML(data)
	if err != nil {
		return nil, err
	}
	path := pathOf(key)
	maps.DeleteFunc(want, func(k, _ string) bool { return k == path || strings.HasPrefix(k, path+"\x00") })
	if value != nil {
		addFlat(want, path, value)
	}
	changed, err := editLines(data, key, value)
	if err != nil {
		return nil, err
	}
	have, err := flattenYAML(changed)
	if err != nil || !maps.Equal(have, want) {
		return nil, handError(key)
	}
	return changed, nil
}

// handError returns the error for a file that only a person can change.
func handError(key []string) error {
	return fmt.Errorf("%s: the file is written in a way that Atoll cannot change: use atoll config edit", strings.Join(key, "."))
}

// editLines is editYAML without the comparison.
func editLines(data []byte, key []string, value *yaml.Node) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	lines := textLines(data)
	if doc.Kind == 0 || isNull(doc.Content[0]) { // nothing but comments
		if value == nil {
			return data, nil
		}
		return joinLines(insertLines(lines, len(lines), renderSetting(key, 0, value))), nil
	}
	at, rest := doc.Content[0], key
	var emptied, content *yaml.Node // the outermost table that has nothing but the key, and its content
	for {
		if at.Kind != yaml.MappingNode || len(at.Content) == 0 || at.Style&yaml.FlowStyle != 0 {
			return nil, handError(key)
		}
		k, v := findPair(at, rest[0])
		switch {
		case k == nil && value == nil:
			return data, nil
		case k == nil:
			return joinLines(insertLines(lines, lastLine(at), renderSetting(rest, at.Content[0].Column-1, value))), nil
		case len(rest) == 1 && value == nil && emptied != nil && len(at.Content) == 2:
			return joinLines(replaceSetting(lines, emptied, content, nil)), nil
		case len(rest) == 1:
			return joinLines(replaceSetting(lines, k, v, value)), nil
		case isNull(v) && value == nil:
			return data, nil
		case isNull(v):
			return joinLines(insertLines(lines, k.Line, renderSetting(rest[1:], k.Column+1, value))), nil
		}
		if emptied == nil || len(at.Content) > 2 {
			emptied, content = k, v
		}
		at, rest = v, rest[1:]
	}
}

// replaceSetting replaces the lines of a key by another value, or removes them if value is nil.
func replaceSetting(lines []string, k, v, value *yaml.Node) []string {
	first, last := k.Line-1, max(k.Line, lastLine(v))
	if value == nil {
		return slices.Delete(lines, first, last)
	}
	added := renderSetting([]string{k.Value}, k.Column-1, value)
	if comment := lineComment(v, k); comment != "" {
		added[0] += "  " + comment
	}
	return insertLines(slices.Delete(lines, first, last), first, added)
}

// lineComment returns the comment at the end of the line of a value or its key.
func lineComment(v, k *yaml.Node) string {
	if v.LineComment != "" {
		return v.LineComment
	}
	return k.LineComment
}

// findPair returns the key called name of a mapping, and its value; nil if there is none.
func findPair(mapping *yaml.Node, name string) (k, v *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}

// lastLine returns the number of the last line in which a value of n begins.
func lastLine(n *yaml.Node) int {
	last := n.Line
	for _, c := range n.Content {
		last = max(last, lastLine(c))
	}
	return last
}

// renderSetting returns the lines that set a key, below a table that is indented by so many spaces.
func renderSetting(key []string, indent int, value *yaml.Node) []string {
	for _, part := range slices.Backward(key) {
		value = &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!str", Value: part}, value}}
	}
	var text bytes.Buffer
	enc := yaml.NewEncoder(&text)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(value), enc.Close()); err != nil {
		panic("config: " + err.Error()) // a mapping of strings
	}
	lines := textLines(text.Bytes())
	for i := range lines {
		lines[i] = strings.Repeat(" ", indent) + lines[i]
	}
	return lines
}

// textLines returns the lines of a text, without their ends.
func textLines(data []byte) []string {
	text := strings.TrimSuffix(string(data), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func joinLines(lines []string) []byte {
	if len(lines) == 0 {
		return []byte{}
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

func insertLines(lines []string, at int, added []string) []string {
	return slices.Insert(lines, min(at, len(lines)), added...)
}

// errNotYAML means that a file is no YAML.
var errNotYAML = errors.New("not valid YAML")

// flattenYAML returns the values of a file by their paths, without nulls and empty tables. Kinds: errNotYAML.
func flattenYAML(data []byte) (map[string]string, error) {
	flat := map[string]string{}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotYAML, err)
	}
	if doc.Kind != 0 {
		addFlat(flat, "", doc.Content[0])
	}
	return flat, nil
}

// pathOf returns the path of a key in the map of flattenYAML.
func pathOf(key []string) string { return "\x00" + strings.Join(key, "\x00") }

// addFlat adds the values below n, which has a path.
func addFlat(flat map[string]string, path string, n *yaml.Node) {
	n = resolveAlias(n)
	switch {
	case isNull(n):
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			addFlat(flat, path+"\x00"+n.Content[i].Value, n.Content[i+1])
		}
	case n.Kind == yaml.SequenceNode:
		flat[path] = "list"
		for i, c := range n.Content {
			addFlat(flat, path+"\x00"+strconv.Itoa(i), c)
		}
	default:
		flat[path] = "text " + n.Value
	}
}
