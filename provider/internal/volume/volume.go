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
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A Store is a directory of volumes. All methods may be called at once from many
// goroutines, and from many processes. Whether a volume is in use is for its
// user to know, who has to know it before he makes one: see Remove.
type Store string

// Open returns the store in dir, which is made if missing.
func Open(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", atoll.E("open", dir, kindOf(err), err)
	}
	return Store(dir), nil
}

const dataPrefix = "data-"

// DataName is the name of a sandbox's own volume.
func DataName(id string) string { return dataPrefix + id }

// sandboxOf is the id that a volume's name has in it, however it is written: it
// is the sandbox's own if it has the name that DataName says.
func sandboxOf(name string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(name, dataPrefix)
	id, err := atoll.NormalizeID(rest)
	return id, ok && err == nil && id != ""
}

// Mountable fails when spec names a sandbox's own volume among its mounts: that
// goes with its sandbox, whoever else has it. Kinds: ErrInvalid.
func Mountable(spec *atoll.Spec) error {
	for _, m := range spec.Mounts {
		if id, ok := sandboxOf(m.Source); ok && m.Type == atoll.MountVolume {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid,
				"volume %q is the work directory of sandbox %s, and goes with it: use a volume of another name, or make a sandbox with that id to have what is left there", m.Source, id)
		}
	}
	return nil
}

// Dirs are the directories of a sandbox that are on volumes.
func Dirs(spec *atoll.Spec) []string {
	dirs := []string{atoll.DefaultWorkdir}
	for _, m := range spec.Mounts {
		if m.Type == atoll.MountVolume {
			dirs = append(dirs, m.Target)
		}
	}
	return dirs
}

// Path is where a volume is, or would be. project and name must be valid.
func (s Store) Path(project, name string) string {
	return filepath.Join(string(s), project, name)
}

// Has reports whether a volume is there.
func (s Store) Has(project, name string) bool {
	_, err := os.Lstat(s.Path(project, name))
	return err == nil
}

// unborn is the name of a volume that is being made, in its project's directory.
// One that is left by who was killed is the next.
const unborn = ".new"

// Make makes a volume that all can read, whatever the umask, unless it is there.
// Kinds: ErrInvalid, ErrExhausted.
func (s Store) Make(project, name string) error {
	if !atoll.ValidName(project) || !atoll.ValidName(name) {
		return atoll.Errorf("make volume", name, atoll.ErrInvalid, "volume %q of project %q: not a valid name", name, project)
	}
	err := s.locked(func() error {
		if s.Has(project, name) {
			return nil
		}
		made := s.Path(project, unborn)
		if err := os.MkdirAll(made, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(made, 0o755); err != nil {
			return err
		}
		return os.Rename(made, s.Path(project, name))
	})
	if err != nil {
		return atoll.E("make volume", name, kindOf(err), err)
	}
	return nil
}

// Remove deletes a volume, for all others at once, unless used says that it is
// in use; nil means that it is not. No volume is made while used is asked:
// whoever counts as a user before he calls Make finds the volume as it was, or
// an empty one, and never one that is being emptied. Kinds: ErrNotExist,
// ErrConflict (it is in use), and that of used.
func (s Store) Remove(project, name string, used func() (bool, error)) error {
	var aside string
	err := s.locked(func() (err error) {
		aside, err = s.putAside(project, name, used)
		return err
	})
	if err == nil {
		err = fsutil.RemoveAll(aside)
	}
	if err != nil {
		return atoll.E("remove volume", name, kindOf(err), err)
	}
	return s.locked(func() error {
		_ = os.Remove(s.Path(project, unborn))
		_ = os.Remove(filepath.Dir(aside)) // succeeds for the last volume of the project
		return nil
	})
}

// trash is what the names of volumes begin with that are being removed.
const trash = ".trash-"

// putAside gives a volume a name under which nobody looks for it. It stays in
// its parent: what its own mode forbids does not matter there.
func (s Store) putAside(project, name string, used func() (bool, error)) (aside string, err error) {
	if !atoll.ValidName(project) || !atoll.ValidName(name) || !s.Has(project, name) {
		return "", atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	if used != nil {
		in, err := used()
		if err != nil {
			return "", err
		}
		if in {
			return "", atoll.Errorf("remove volume", name, atoll.ErrConflict, "volume %q of project %q is in use by a sandbox: remove that first", name, project)
		}
	}
	path := s.Path(project, name)
	aside = filepath.Join(filepath.Dir(path), trash+atoll.NewID())
	return aside, os.Rename(path, aside)
}

// EmptyTrash deletes what is left of removals that were interrupted.
func (s Store) EmptyTrash() error {
	projects, err := names(string(s))
	errs := []error{err}
	for _, p := range projects {
		entries, err := os.ReadDir(s.Path(p, ""))
		if !errors.Is(err, fs.ErrNotExist) { // just removed
			errs = append(errs, err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), trash) {
				errs = append(errs, fsutil.RemoveAll(s.Path(p, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

// locked runs f while nobody else makes or removes volumes, in any process.
func (s Store) locked(f func() error) error {
	lock, err := fsutil.WaitLock(string(s) + ".lock")
	if err != nil {
		return err
	}
	defer lock.Release()
	return f()
}

// List describes the volumes of a project, or of all when it is "", sorted by
// project and name.
func (s Store) List(project string) ([]atoll.Volume, error) {
	projects, err := names(string(s))
	if err != nil {
		return nil, atoll.E("volumes", project, kindOf(err), err)
	}
	var list []atoll.Volume
	for _, p := range projects {
		if project != "" && p != project {
			continue
		}
		volumes, err := names(s.Path(p, ""))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // just removed
			return nil, atoll.E("volumes", project, kindOf(err), err)
		}
		for _, name := range volumes {
			list = append(list, s.describe(p, name))
		}
	}
	slices.SortFunc(list, func(a, b atoll.Volume) int {
		return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

// names lists the directories in dir that have the name of a volume or project.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var list []string
	for _, e := range entries {
		if e.IsDir() && atoll.ValidName(e.Name()) {
			list = append(list, e.Name())
		}
	}
	return list, err
}

func (s Store) describe(project, name string) atoll.Volume {
	v := atoll.Volume{Name: name, Project: project, Created: born(s.Path(project, name))}
	if id, ok := sandboxOf(name); ok && name == DataName(id) {
		v.Sandbox = id
	}
	return v
}

func kindOf(err error) atoll.Kind {
	if fsutil.IsFull(err) {
		return atoll.ErrExhausted
	}
	return atoll.KindOf(err)
}
