// Package volume keeps directories that outlive sandboxes, each known by its
// project and name: {dir}/{project}/{name}.
package volume

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A Store keeps volumes. All methods may be called at once from many
// goroutines, and from many processes. Whether a volume is in use is for its
// user to know.
type Store struct{ dir string }

// Open returns the store in dir, which is made if missing.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, atoll.E("open", dir, atoll.KindOf(err), err)
	}
	return &Store{dir}, nil
}

const dataPrefix = "data-"

// DataName is the name of a sandbox's own volume.
func DataName(id string) string { return dataPrefix + id }

// Path is where a volume is, or would be. project and name must be valid.
func (s *Store) Path(project, name string) string { return filepath.Join(s.dir, project, name) }

// Has reports whether a volume is there.
func (s *Store) Has(project, name string) bool {
	_, err := os.Lstat(s.Path(project, name))
	return err == nil
}

// Make makes a volume, unless it is there.
func (s *Store) Make(project, name string) error {
	if !atoll.ValidName(project) || !atoll.ValidName(name) {
		return atoll.Errorf("make volume", name, atoll.ErrInvalid, "volume %q of project %q: not a valid name", name, project)
	}
	if err := os.MkdirAll(s.Path(project, name), 0o755); err != nil {
		return atoll.E("make volume", name, atoll.KindOf(err), err)
	}
	return nil
}

// Remove deletes a volume. Kinds: ErrNotExist.
func (s *Store) Remove(project, name string) error {
	if !atoll.ValidName(project) || !atoll.ValidName(name) {
		return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	dir := s.Path(project, name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	if err := removeAll(dir); err != nil {
		return atoll.E("remove volume", name, atoll.KindOf(err), err)
	}
	_ = os.Remove(filepath.Dir(dir)) // succeeds for the last volume of the project
	return nil
}

// removeAll is os.RemoveAll for trees in which a directory may forbid it.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(name, 0o700) // RemoveAll tells whether it was enough
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// List describes the volumes of a project, or of all when it is "", sorted by
// project and name.
func (s *Store) List(project string) ([]atoll.Volume, error) {
	projects, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, atoll.E("volumes", project, atoll.KindOf(err), err)
	}
	var list []atoll.Volume
	for _, p := range projects {
		if project != "" && p.Name() != project {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(s.dir, p.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // just removed
			return nil, atoll.E("volumes", project, atoll.KindOf(err), err)
		}
		for _, e := range entries {
			list = append(list, s.describe(p.Name(), e))
		}
	}
	slices.SortFunc(list, func(a, b atoll.Volume) int {
		return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

func (s *Store) describe(project string, e fs.DirEntry) atoll.Volume {
	v := atoll.Volume{Name: e.Name(), Project: project, Created: born(s.Path(project, e.Name()))}
	if id, ok := strings.CutPrefix(v.Name, dataPrefix); ok {
		if n, err := atoll.NormalizeID(id); err == nil && n == id {
			v.Sandbox = id
		}
	}
	return v
}
