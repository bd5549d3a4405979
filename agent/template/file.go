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

// Bounds of files, far beyond sensible ones.
const (
	maxFile  = 1 << 20
	maxFiles = 1000
)

// LoadDir adds the templates of a directory: one from each file that ends in .yaml or
// .yml and doesn't begin with a dot. A template has the name of its file without the
// ending, unless the file sets another. LoadDir ignores subdirectories. A template that
// extends another starts as a copy of it; one with the name of a built-in template
// replaces that, and may extend it.
//
// LoadDir reports all errors at once, with file and line, and then adds no template.
// Kinds: ErrInvalid; ErrNotExist (no such directory); ErrAlreadyExists (two templates
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
	return s.addSources(files)
}

// Parse adds the template in a YAML document, as LoadDir does; name is its name in
// errors, and that of the template unless the document sets one. Kinds: ErrInvalid,
// ErrAlreadyExists.
func (s *Set) Parse(name string, data []byte) error {
	return s.addSources([]source{{path: name, name: name, data: data}})
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
	name string // of the template, after readHead
	data []byte

	top     *yaml.Node
	extends string // "" if none
}

// A form lists the keys of a file.
type form struct {
	Name      string `yaml:"name"`
	Extends   string `yaml:"extends"`
	*Template `yaml:"inline"`
	Hooks     hooksForm `yaml:"hooks"`
}

// addSources adds the templates of files, or none.
func (s *Set) addSources(files []source) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, hooks := maps.Clone(s.entries), maps.Clone(s.hooks)
	var errs []error
	made := map[string]*source{}
	for i := range files {
		f := &files[i]
		if err := f.readHead(); err != nil {
			errs = append(errs, err)
			continue
		}
		e := &entry{from: f.path}
		if err := putEntry(all, f.name, e); err != nil {
			errs = append(errs, err)
			continue
		}
		e.make = func(agentID string) (*Template, error) { return f.makeTemplate(e, all, hooks, agentID) }
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
		if err := checkExtends(made[name], made, all); err != nil {
			errs = append(errs, err)
			continue
		}
		_, err := all[name].makeTemplate(name, "")
		if err != nil && !strings.Contains(err.Error(), made[name].path) { // errors of Validate don't name the file
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

// readHead parses a file and reads the keys that other files depend on: its name, and
// the template that it extends.
func (f *source) readHead() error {
	if len(f.data) > maxFile {
		return fmt.Errorf("%s: larger than %d bytes", f.path, maxFile)
	}
	dec := yaml.NewDecoder(bytes.NewReader(f.data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: file is empty: write keys like extends and agent", f.path)
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
			f.extends = resolveAlias(v.Value)
		}
	}
	if !atoll.ValidName(f.name) {
		return fmt.Errorf("%s: name %.100q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", f.path, f.name)
	}
	return nil
}

// checkExtends returns an error if the template that a file extends is missing, or the
// chain is a cycle.
func checkExtends(f *source, files map[string]*source, all map[string]*entry) error {
	chain := []string{f.name}
	for at := f; at != nil && at.extends != ""; at = files[at.extends] {
		next := at.extends
		switch {
		case next == at.name && all[next].replaced != nil: // extends the one that it replaces
			return nil
		case all[next] == nil:
			return fmt.Errorf("%s: extends: %w", at.path, unknownTemplate(next, all))
		case slices.Contains(chain, next):
			return fmt.Errorf("%s: extends: cycle: %s", f.path, strings.Join(append(chain, next), ", "))
		}
		chain = append(chain, next)
	}
	return nil
}

// makeTemplate makes the template of a file, whose entry is e, for an agent. The file
// can name the templates in all and the hooks in known.
func (f *source) makeTemplate(e *entry, all map[string]*entry, known map[string]hooks.HookFunc, agentID string) (*Template, error) {
	t := &Template{Hooks: hooks.Default()}
	if f.extends != "" {
		base := all[f.extends]
		if f.extends == f.name {
			base = e.replaced
		}
		var err error
		if t, err = base.makeTemplate(f.extends, agentID); err != nil {
			return nil, err
		}
	}
	d := &decoder{file: f.path}
	form := form{Template: t}
	d.readTop(f.top, &form)
	t.Name = f.name
	form.Hooks.applyHooks(d, t, known)
	return t, d.joinErrors()
}
