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

// readFile takes the settings in the YAML file. One that is missing is an
// error only when it was named.
func (s *schema) readFile(path string, named bool) error {
	if path == "" {
		return nil
	}
	data, err := secretref.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return err
	}
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
	r.table("", doc.Content[0])
	return r.errs.join()
}

// A reader walks the tree of one file.
type reader struct {
	*schema
	path string
	errs errorList
}

func (r *reader) at(n *yaml.Node) string { return fmt.Sprintf("%s:%d", r.path, n.Line) }

// table takes the keys of the mapping n, which stands at prefix.
func (r *reader) table(prefix string, n *yaml.Node) {
	n = follow(n)
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		what := "the file"
		if prefix != "" {
			what = strings.TrimSuffix(prefix, ".")
		}
		r.errs.addf("%s: %s: want a table of keys", r.at(n), what)
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := prefix + k.Value
		if line, twice := first[key]; twice {
			r.errs.addf("%s: %q is set twice, first in line %d", r.at(k), key, line)
			continue
		}
		first[key] = k.Line
		r.key(key, k, v)
	}
}

func (r *reader) key(key string, k, v *yaml.Node) {
	if err := r.grow(key); err != nil {
		r.errs.addf("%s: %w", r.at(k), err)
		return
	}
	if r.isTable(key) {
		r.table(key+".", v)
		return
	}
	l := r.leaf(key)
	if l == nil {
		r.errs.addf("%s: unknown key %q: %s", r.at(k), key, instead(key, r.keys()))
		return
	}
	v = follow(v)
	if isNull(v) {
		return
	}
	texts, ok := scalars(v)
	if !ok {
		r.errs.addf("%s: %s: want a value, not a table", r.at(v), key)
		return
	}
	r.errs.add(l.set(texts, r.at(k), r.home))
}

// scalars gives the text of a value, or those of a list of values.
func scalars(n *yaml.Node) ([]string, bool) {
	if n.Kind == yaml.ScalarNode {
		return []string{n.Value}, true
	}
	if n.Kind != yaml.SequenceNode {
		return nil, false
	}
	texts := []string{}
	for _, c := range n.Content {
		c = follow(c)
		if c.Kind != yaml.ScalarNode {
			return nil, false
		}
		texts = append(texts, c.Value)
	}
	return texts, true
}

func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
