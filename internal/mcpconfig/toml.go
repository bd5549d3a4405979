package mcpconfig

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
)

// decodeTOML decodes a TOML file.
func decodeTOML(text []byte) (map[string]any, error) {
	all := map[string]any{}
	if err := toml.Unmarshal(bytes.TrimPrefix(text, utf8BOM), &all); err != nil {
		if e, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, column := e.Position()
			return nil, fmt.Errorf("not valid TOML: line %d, column %d: %w", line, column, err)
		}
		return nil, fmt.Errorf("not valid TOML: %w", err)
	}
	return all, nil
}

// takeEntry removes the entry from a decoded file, and returns it; nil if there is none.
func takeEntry(all map[string]any, table string) (*Entry, error) {
	value, ok := all[table]
	if !ok {
		return nil, nil
	}
	entries, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is not a table", table)
	}
	found, ok := entries[serverName]
	if !ok {
		return nil, nil
	}
	var e Entry
	if data, err := toml.Marshal(found); err == nil {
		_ = toml.Unmarshal(data, &e) // an entry of another form is not ours
	}
	if delete(entries, serverName); len(entries) == 0 {
		delete(all, table)
	}
	return &e, nil
}

// addTOML returns text with the entry as a table, at the place of an old one or at the end.
func addTOML(text []byte, table string, e Entry) ([]byte, error) {
	_, found, err := removeTOML(text, table) // which checks the entry
	if err != nil {
		return nil, err
	}
	start, end := len(text), len(text)
	if found {
		start, end = findTable(text, table)
	}
	body, err := toml.Marshal(e)
	if err != nil {
		return nil, err
	}
	block := fmt.Sprintf("[%s.%s]\n%s", table, serverName, body)
	if !found && len(text) > 0 {
		block = "\n" + block
		if !bytes.HasSuffix(text, []byte("\n")) {
			block = "\n" + block
		}
	}
	if bytes.Contains(text, []byte("\r\n")) {
		block = strings.ReplaceAll(block, "\n", "\r\n")
	}
	edited := slices.Concat(text[:start], []byte(block), text[end:])
	before, err := decodeTOML(text)
	if err != nil {
		return nil, err
	}
	after, err := decodeTOML(edited)
	if err == nil {
		err = checkTOML(before, after, table, &e)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot edit %s.%s: edit the file yourself: %w", table, serverName, err)
	}
	return edited, nil
}

// removeTOML returns text without the entry.
func removeTOML(text []byte, table string) (rest []byte, found bool, err error) {
	before, err := decodeTOML(text)
	if err != nil {
		return nil, false, err
	}
	all, _ := decodeTOML(text)
	old, err := takeEntry(all, table)
	if err != nil || old == nil {
		return text, false, err
	}
	if !old.isOurs() {
		return nil, true, old.foreignError()
	}
	start, end := findTable(text, table)
	if start < 0 {
		return nil, true, fmt.Errorf("cannot edit %s.%s, which is not a table of its own: edit the file yourself", table, serverName)
	}
	rest = slices.Concat(text[:start], text[end:])
	if end == len(text) { // the empty line before it
		rest = bytes.TrimSuffix(rest, []byte(lineEnd(text)+lineEnd(text)))
		if len(rest) < start && len(rest) > 0 {
			rest = append(rest, lineEnd(text)...)
		}
	}
	after, err := decodeTOML(rest)
	if err == nil {
		err = checkTOML(before, after, table, nil)
	}
	if err != nil {
		return nil, true, fmt.Errorf("cannot edit %s.%s: edit the file yourself: %w", table, serverName, err)
	}
	return rest, true, nil
}

// lineEnd returns the line end of a text.
func lineEnd(text []byte) string {
	if bytes.Contains(text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// checkTOML returns an error unless after is before with the entry; nil means without one.
func checkTOML(before, after map[string]any, table string, want *Entry) error {
	_, err := takeEntry(before, table)
	if err != nil {
		return err
	}
	got, err := takeEntry(after, table)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(before, after) || !reflect.DeepEqual(got, want) {
		return errors.New("the file has an unusual form")
	}
	return nil
}

// tableHeader matches the header of a table, and captures its name.
var tableHeader = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}\s*(#.*)?$`) })

// findTable returns the lines of the entry's table and of those below it, -1 if there is no such table. Comments and
// empty lines at the end belong to what follows.
func findTable(text []byte, table string) (start, end int) {
	start, end = -1, -1
	at, inside := 0, false
	for line := range bytes.Lines(text) {
		trimmed := bytes.TrimSpace(line)
		if m := tableHeader().FindSubmatch(bytes.TrimRight(line, "\r\n")); m != nil {
			name := strings.NewReplacer(`"`, "", "'", "", " ", "", "\t", "").Replace(string(m[1]))
			own := table + "." + serverName
			if inside = name == own || strings.HasPrefix(name, own+"."); inside && start < 0 {
				start = at
			}
		}
		at += len(line)
		if inside && len(trimmed) > 0 && trimmed[0] != '#' {
			end = at
		}
	}
	return start, end
}
