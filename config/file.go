package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll/internal/secretref"
)

// readConfigFile returns the content of the file. A missing file is an error only if it was named.
func readConfigFile(path string, named bool) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, err := secretref.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil, nil
	}
	return data, err
}

// readData reads the settings in data, the content of the file at path.
func (s *schema) readData(path string, data []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one document: keep the first", path)
	}
	r := &reader{schema: s, path: path}
	r.readTable("", doc.Content[0])
	return r.errs.joinErrors()
}

// A reader walks through the YAML tree of a file.
type reader struct {
	*schema
	path string
	errs errorList
}

// formatPosition returns the file and line of n.
func (r *reader) formatPosition(n *yaml.Node) string { return fmt.Sprintf("%s:%d", r.path, n.Line) }

// readTable reads the keys of the mapping n. prefix is the key of the mapping and a dot.
func (r *reader) readTable(prefix string, n *yaml.Node) {
	n = resolveAlias(n)
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		what := "the file"
		if prefix != "" {
			what = strings.TrimSuffix(prefix, ".")
		}
		r.errs.addErrorf("%s: %s: want a table of keys", r.formatPosition(n), what)
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := prefix + k.Value
		if line, twice := first[key]; twice {
			r.errs.addErrorf("%s: %q is set twice, first in line %d", r.formatPosition(k), key, line)
			continue
		}
		first[key] = k.Line
		r.readKey(key, k, v)
	}
}

// readKey reads the key k with the value v. key is its full name.
func (r *reader) readKey(key string, k, v *yaml.Node) {
	if err := r.addNamedTable(key); err != nil {
		r.errs.addErrorf("%s: %w", r.formatPosition(k), err)
		return
	}
	if r.isTable(key) {
		r.readTable(key+".", v)
		return
	}
	l := r.findSetting(key)
	if l == nil {
		r.errs.addErrorf("%s: unknown key %q: %s", r.formatPosition(k), key, suggestKey(key, r.listKeys()))
		return
	}
	v = resolveAlias(v)
	if isNull(v) {
		return
	}
	texts, ok := scalarTexts(v)
	if !ok {
		r.errs.addErrorf("%s: %s: want a value, not a table", r.formatPosition(v), key)
		return
	}
	r.errs.addError(l.setValue(texts, r.formatPosition(k), r.home))
}

// scalarTexts returns the text of a value, or the texts of a list of values. It returns false for other values.
func scalarTexts(n *yaml.Node) ([]string, bool) {
	if n.Kind == yaml.ScalarNode {
		return []string{n.Value}, true
	}
	if n.Kind != yaml.SequenceNode {
		return nil, false
	}
	texts := []string{}
	for _, c := range n.Content {
		c = resolveAlias(c)
		if c.Kind != yaml.ScalarNode {
			return nil, false
		}
		texts = append(texts, c.Value)
	}
	return texts, true
}

// resolveAlias returns the node that n is an alias of, or n itself.
func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
