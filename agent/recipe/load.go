package recipe

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/suggest"
)

// builtin has Atoll's own recipes.
//
//go:embed *.yaml
var builtin embed.FS

// extension is the end of a recipe's file name, after the name of the agent.
const extension = ".yaml"

// Recipes are sorted by their names.
type Recipes []*Recipe

// Load returns Atoll's recipes, and those in the directory of the user, which may not exist. A recipe of the user replaces one with
// the same name. The error has the faults of all files, with kind ErrInvalid.
func Load(dir string) (Recipes, error) {
	all := map[string]*Recipe{}
	errs := []error{addFiles(all, builtin, "")}
	if dir != "" {
		errs = append(errs, addFiles(all, os.DirFS(dir), dir))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, atoll.E("agent", "", atoll.ErrInvalid, err)
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *Recipe) int { return strings.Compare(a.Name, b.Name) }), nil
}

// addFiles adds the recipes in the top directory of files. dir is the name of that directory, "" for Atoll's own.
func addFiles(all map[string]*Recipe, files fs.FS, dir string) error {
	entries, err := fs.ReadDir(files, ".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), extension)
		if !ok || e.IsDir() {
			continue
		}
		source := ""
		if dir != "" {
			source = filepath.Join(dir, e.Name())
		}
		data, err := fs.ReadFile(files, e.Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r, err := parseRecipe(name, data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", cmp.Or(source, e.Name()), err))
			continue
		}
		r.Source = source
		all[name] = r
	}
	return errors.Join(errs...)
}

// parseRecipe parses and validates the file of the agent called name.
func parseRecipe(name string, data []byte) (*Recipe, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	r := &Recipe{}
	if len(doc.Content) == 0 {
		return nil, errors.New("the file is empty: write at least a command")
	}
	if err := checkKeys("", doc.Content[0], reflect.TypeFor[Recipe]()); err != nil {
		return nil, err
	}
	if err := doc.Decode(r); err != nil {
		return nil, err
	}
	if r.Name = cmp.Or(r.Name, name); r.Name != name {
		return nil, fmt.Errorf("name: %q must be the name of the file, %q", r.Name, name)
	}
	return r, r.Validate()
}

// checkKeys returns the unknown keys below a node as an error, each with the nearest known one. at is the path of the node.
func checkKeys(at string, n *yaml.Node, t reflect.Type) error {
	var errs []error
	switch {
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for _, c := range n.Content {
			errs = append(errs, checkKeys(at, c, t.Elem()))
		}
	case t.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		fields := listFields(t)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if field, ok := fields[k.Value]; ok {
				errs = append(errs, checkKeys(at+k.Value+".", n.Content[i+1], field))
				continue
			}
			known := slices.Sorted(maps.Keys(fields))
			hint := "the known ones are " + strings.Join(known, ", ")
			if near := suggest.Closest(k.Value, known); near != "" {
				hint = "did you mean " + near
			}
			errs = append(errs, fmt.Errorf("line %d: unknown key %q: %s", k.Line, at+k.Value, hint))
		}
	}
	return errors.Join(errs...)
}

// listFields returns the types of the fields of a struct by their names in YAML.
func listFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "-" {
			fields[name] = t.Field(i).Type
		}
	}
	return fields
}

// Names returns the names of the agents.
func (all Recipes) Names() []string {
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.Name
	}
	return names
}

// Find returns the recipe of an agent. Its error, of kind ErrNotExist, names the nearest one.
func (all Recipes) Find(name string) (*Recipe, error) {
	if i := slices.IndexFunc(all, func(r *Recipe) bool { return r.Name == name }); i >= 0 {
		return all[i], nil
	}
	hint := "the known ones are " + strings.Join(all.Names(), ", ")
	if near := suggest.Closest(name, all.Names()); near != "" {
		hint = "did you mean " + near
	}
	return nil, atoll.Errorf("agent", name, atoll.ErrNotExist, "no such agent: %s", hint)
}
