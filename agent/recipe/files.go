package recipe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// A FileRule describes a file below the home directory that the agent reads, say to ask no questions.
type FileRule struct {
	Path string `yaml:"path"`
	// Content is a template of text/template with the fields of Params. If it renders to spaces only, there is no such file.
	Content string `yaml:"content"`
	// When says what happens if the file exists; empty means WhenMissing.
	When When `yaml:"when"`
}

// When says what happens if a file exists.
type When string

const (
	WhenMissing When = "missing" // the file stays as it is
	WhenAlways  When = "always"  // it is replaced
	WhenMerge   When = "merge"   // Merge adds the content to a file with JSON
)

// Params are the values for templates.
type Params struct {
	Home    string            // the home directory in the sandbox
	Workdir string            // the work directory in the sandbox
	Secrets map[string]string // the placeholders by the names of their variables
}

// A File is a file to write below the home directory, for its owner only.
type File struct {
	Path    string // relative to the home directory
	Content []byte
	When    When
}

// RenderFiles returns the files of the recipe.
func (r *Recipe) RenderFiles(p Params) ([]File, error) {
	var files []File
	for _, rule := range r.Files {
		text, err := renderTemplate(rule.Path, rule.Content, p)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(text) == "" {
			continue
		}
		when := rule.When
		if when == "" {
			when = WhenMissing
		}
		files = append(files, File{Path: rule.Path, Content: []byte(text), When: when})
	}
	return files, nil
}

// RenderEnv returns the variables of the recipe. It leaves out those that render to "".
func (r *Recipe) RenderEnv(p Params) (map[string]string, error) {
	env := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		value, err := renderTemplate(name, r.Env[name], p)
		if err != nil {
			return nil, err
		}
		if value != "" {
			env[name] = value
		}
	}
	return env, nil
}

// functions has the functions that templates may use, beside those of text/template.
var functions = template.FuncMap{
	"json": func(v any) (string, error) { data, err := json.Marshal(v); return string(data), err },
	"last": func(n int, s string) string { return s[max(0, len(s)-n):] },
}

// renderTemplate renders a template; name is for its errors.
func renderTemplate(name, text string, p Params) (string, error) {
	t, err := template.New(name).Funcs(functions).Option("missingkey=zero").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, p); err != nil {
		return "", err
	}
	return b.String(), nil
}

// Merge returns the JSON object old with the values of the object content. It merges tables, adds the missing elements to lists,
// and replaces other values. If old is empty, it returns content.
func Merge(old, content []byte) ([]byte, error) {
	if len(bytes.TrimSpace(old)) == 0 {
		return content, nil
	}
	have, err := decodeObject(old)
	if err != nil {
		return nil, fmt.Errorf("cannot add to the file: %w", err)
	}
	add, err := decodeObject(content)
	if err != nil {
		return nil, fmt.Errorf("the content to add: %w", err)
	}
	merged, err := json.MarshalIndent(mergeValues(have, add), "", "  ")
	return append(merged, '\n'), err
}

// decodeObject parses a JSON object. Its numbers keep all digits.
func decodeObject(data []byte) (object map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	err = d.Decode(&object)
	return object, err
}

// mergeValues merges two values of JSON.
func mergeValues(have, add any) any {
	switch add := add.(type) {
	case map[string]any:
		table, ok := have.(map[string]any)
		if !ok {
			return add
		}
		for name, value := range add {
			table[name] = mergeValues(table[name], value)
		}
		return table
	case []any:
		list, ok := have.([]any)
		if !ok {
			return add
		}
		for _, value := range add {
			if !slices.ContainsFunc(list, func(v any) bool { return equalValues(v, value) }) {
				list = append(list, value)
			}
		}
		return list
	}
	return add
}

// equalValues reports whether two values of JSON are equal.
func equalValues(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
