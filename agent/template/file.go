package template

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
)

// Bounds of files, far beyond what is sensible.
const (
	maxFile  = 1 << 20
	maxFiles = 1000
)

// LoadDir adds the templates of a directory: one in each file that ends in .yaml or .yml
// and does not begin with a dot, which has the name of the file without that end unless
// it says another. Directories in it are left alone. A template that extends another
// begins as that; one that has the name of one that every Set has takes its place, and
// may extend it.
//
// All that is wrong is reported at once, with file and line, and then none is added.
// Kinds: ErrInvalid; ErrNotExist (there is no directory); ErrAlreadyExists (two templates
// have one name); those of reading files.
func (s *Set) LoadDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return atoll.E("template", "", atoll.KindOf(err), err)
	}
	var files []source
	var errs []error
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		path := filepath.Join(dir, e.Name())
		data, err := readLimited(path)
		errs = append(errs, err)
		files = append(files, source{path: path, name: strings.TrimSuffix(e.Name(), ext), data: data})
	}
	if err := errors.Join(errs...); err != nil {
		return atoll.E("template", "", atoll.KindOf(err), err)
	}
	if len(files) > maxFiles {
		return atoll.Errorf("template", "", atoll.ErrInvalid, "%s: more than %d templates", dir, maxFiles)
	}
	return s.add(files)
}

// Parse adds the template that stands in a YAML document, as LoadDir does; name is what
// errors call it, and the template if it does not say. Kinds: ErrInvalid,
// ErrAlreadyExists.
func (s *Set) Parse(name string, data []byte) error {
	return s.add([]source{{path: name, name: name, data: data}})
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// A source is a file with one template.
type source struct {
	path string
	name string // of the template, in the end
	data []byte

	top     *yaml.Node
	extends string // "" for none
}

// A form is what can stand in a file.
type form struct {
	Name      string `yaml:"name"`
	Extends   string `yaml:"extends"`
	*Template `yaml:"inline"`
	Hooks     hooksForm `yaml:"hooks"`
}

// add adds the templates of files, or none.
func (s *Set) add(files []source) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, hooks := maps.Clone(s.entries), maps.Clone(s.hooks)
	var errs []error
	made := map[string]*source{}
	for i := range files {
		f := &files[i]
		if err := f.head(); err != nil {
			errs = append(errs, err)
			continue
		}
		e := &entry{from: f.path}
		if err := put(all, f.name, e); err != nil {
			errs = append(errs, err)
			continue
		}
		e.make = func(agentID string) (*Template, error) { return f.template(e, all, hooks, agentID) }
		made[f.name] = f
	}
	if err := errors.Join(errs...); err != nil {
		kind := atoll.ErrInvalid
		if errors.Is(err, atoll.ErrAlreadyExists) {
			kind = atoll.ErrAlreadyExists
		}
		return atoll.E("template", "", kind, err)
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if err := extendable(made[name], made, all); err != nil {
			errs = append(errs, err)
			continue
		}
		_, err := all[name].template(name, "")
		if err != nil && !strings.Contains(err.Error(), made[name].path) { // what Validate says has no file
			err = fmt.Errorf("%s: %w", made[name].path, err)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return atoll.E("template", "", atoll.ErrInvalid, err)
	}
	s.entries = all
	return nil
}

// head reads what is to be known of a file before others: its name, and what it extends.
func (f *source) head() error {
	if len(f.data) > maxFile {
		return fmt.Errorf("%s: larger than %d bytes", f.path, maxFile)
	}
	dec := yaml.NewDecoder(bytes.NewReader(f.data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: there is nothing in it: write keys like extends and agent", f.path)
	} else if err != nil {
		return fmt.Errorf("%s: %s", f.path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one document: write each into a file of its own", f.path)
	}
	f.top = doc.Content[0]
	if f.top.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: want a table of keys", f.path, f.top.Line)
	}
	for i := 0; i+1 < len(f.top.Content); i += 2 {
		switch k, v := f.top.Content[i], f.top.Content[i+1]; {
		case v.ShortTag() == "!!null":
		case k.Value == "name":
			f.name = cmp.Or(v.Value, f.name)
		case k.Value == "extends":
			f.extends = plain(v.Value)
		}
	}
	if !atoll.ValidName(f.name) {
		return fmt.Errorf("%s: name %.100q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", f.path, f.name)
	}
	return nil
}

// extendable reports that what a file extends is not there, or is itself in the end.
func extendable(f *source, files map[string]*source, all map[string]*entry) error {
	chain := []string{f.name}
	for at := f; at != nil && at.extends != ""; at = files[at.extends] {
		next := at.extends
		switch {
		case next == at.name && all[next].under != nil: // the one whose place it takes
			return nil
		case all[next] == nil:
			return fmt.Errorf("%s: extends: %w", at.path, unsupported(next, all))
		case slices.Contains(chain, next):
			return fmt.Errorf("%s: extends: it is made of itself: %s", f.path, strings.Join(append(chain, next), ", "))
		}
		chain = append(chain, next)
	}
	return nil
}

// template makes the template of a file, whose entry is e, for an agent. all and hooks
// are what it can name.
func (f *source) template(e *entry, all map[string]*entry, known map[string]hooks.HookFunc, agentID string) (*Template, error) {
	t := &Template{Hooks: hooks.Default()}
	if f.extends != "" {
		base := all[f.extends]
		if f.extends == f.name {
			base = e.under
		}
		var err error
		if t, err = base.template(f.extends, agentID); err != nil {
			return nil, err
		}
	}
	d := &decoder{file: f.path}
	form := form{Template: t}
	d.top(f.top, &form)
	t.Name = f.name
	form.Hooks.apply(d, t, known)
	return t, d.join()
}
