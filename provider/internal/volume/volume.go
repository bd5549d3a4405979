// Package volume stores volumes: directories that outlive sandboxes, each with a project and a
// name: {dir}/{project}/{name}.
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

// A Store is a directory of volumes. Goroutines and processes may call its methods concurrently.
// The Store does not know which volumes are in use: a caller must register as a user before it
// calls Make, see Remove.
type Store string

// Open returns the store in dir. It creates dir if needed.
func Open(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", atoll.E("open", dir, kindOf(err), err)
	}
	return Store(dir), nil
}

const dataPrefix = "data-"

// DataName returns the name of a sandbox's data volume.
func DataName(id string) string { return dataPrefix + id }

// sandboxID returns the id in the name of a data volume, in its normal form. The name may spell
// it differently; if it equals DataName(id), it is the data volume of the sandbox.
func sandboxID(name string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(name, dataPrefix)
	id, err := atoll.NormalizeID(rest)
	return id, ok && err == nil && id != ""
}

// CheckMounts returns an error if spec mounts the data volume of a sandbox: that is removed with
// its sandbox. Kinds: ErrInvalid.
func CheckMounts(spec *atoll.Spec) error {
	for _, m := range spec.Mounts {
		if id, ok := sandboxID(m.Source); ok && m.Type == atoll.MountVolume {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid,
				"volume %q is the data volume of sandbox %s: use another name, or create a sandbox with that id", m.Source, id)
		}
	}
	return nil
}

// MountedDirs returns the directories of a sandbox that are on volumes.
func MountedDirs(spec *atoll.Spec) []string {
	dirs := []string{atoll.DefaultWorkdir}
	for _, m := range spec.Mounts {
		if m.Type == atoll.MountVolume {
			dirs = append(dirs, m.Target)
		}
	}
	return dirs
}

// Path returns the directory of a volume, whether it exists or not. project and name must be
// valid.
func (s Store) Path(project, name string) string {
	return filepath.Join(string(s), project, name)
}

// Has reports whether a volume exists.
func (s Store) Has(project, name string) bool {
	_, err := os.Lstat(s.Path(project, name))
	return err == nil
}

// unfinishedName is the name of a volume in the making, in its project's directory. If its
// creator is killed, the next one reuses it.
const unfinishedName = ".new"

// Make creates a volume unless it exists. All users can read it, whatever the umask. Kinds:
// ErrInvalid, ErrExhausted.
func (s Store) Make(project, name string) error { return s.makeFrom("", project, name) }

// preparedName is the name of a directory that Prepare makes, in the directory of the store, which has no such project.
const preparedName = ".prepared"

// Prepare makes the directory dir for MakeFrom. It fails if dir is in another file system.
func (s Store) Prepare(dir string) error {
	return s.withLock(func() error {
		prepared := filepath.Join(string(s), preparedName)
		if err := os.MkdirAll(prepared, 0o700); err != nil {
			return err
		}
		return os.Rename(prepared, dir)
	})
}

// MakeFrom makes a volume of the empty directory dir, which it renames: mounts of dir become mounts of the volume. Prepare
// has made dir. Kinds: those of Make, and ErrAlreadyExists.
func (s Store) MakeFrom(dir, project, name string) error { return s.makeFrom(dir, project, name) }

// makeFrom is MakeFrom; with dir "", it is Make.
func (s Store) makeFrom(dir, project, name string) error {
	if !atoll.ValidName(project) || !atoll.ValidName(name) {
		return atoll.Errorf("make volume", name, atoll.ErrInvalid, "volume %q of project %q: invalid name", name, project)
	}
	err := s.withLock(func() error {
		switch has := s.Has(project, name); {
		case has && dir != "":
			return fs.ErrExist
		case has:
			return nil
		}
		parent, unfinished := s.Path(project, ""), dir
		if dir == "" {
			unfinished = s.Path(project, unfinishedName)
			parent = unfinished
		}
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(unfinished, 0o755); err != nil {
			return err
		}
		return os.Rename(unfinished, s.Path(project, name))
	})
	if err != nil {
		return atoll.E("make volume", name, kindOf(err), err)
	}
	return nil
}

// Remove deletes a volume, unless used reports that it is in use; nil means that it is not.
// Other callers see the whole volume or none. No volume is created while used runs: a caller
// that registers as a user before it calls Make gets the old volume or an empty one. Kinds:
// ErrNotExist, ErrConflict (it is in use), and those of used.
func (s Store) Remove(project, name string, used func() (bool, error)) error {
	var aside string
	err := s.withLock(func() (err error) {
		aside, err = s.moveToTrash(project, name, used)
		return err
	})
	if err == nil {
		err = fsutil.RemoveAll(aside)
	}
	if err != nil {
		return atoll.E("remove volume", name, kindOf(err), err)
	}
	return s.withLock(func() error {
		_ = os.Remove(s.Path(project, unfinishedName))
		_ = os.Remove(filepath.Dir(aside)) // succeeds for the last volume of the project
		return nil
	})
}

// trashPrefix begins the names of volumes that are being removed.
const trashPrefix = ".trash-"

// moveToTrash renames a volume within its parent directory. Moving it elsewhere could fail
// because of its own mode.
func (s Store) moveToTrash(project, name string, used func() (bool, error)) (aside string, err error) {
	if !atoll.ValidName(project) || !atoll.ValidName(name) || !s.Has(project, name) {
		return "", atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	if used != nil {
		inUse, err := used()
		if err != nil {
			return "", err
		}
		if inUse {
			return "", atoll.Errorf("remove volume", name, atoll.ErrConflict, "volume %q of project %q is in use by a sandbox: remove the sandbox first", name, project)
		}
	}
	path := s.Path(project, name)
	aside = filepath.Join(filepath.Dir(path), trashPrefix+atoll.NewID())
	return aside, os.Rename(path, aside)
}

// EmptyTrash finishes interrupted removals.
func (s Store) EmptyTrash() error {
	projects, err := listNames(string(s))
	errs := []error{err}
	for _, p := range projects {
		entries, err := os.ReadDir(s.Path(p, ""))
		if !errors.Is(err, fs.ErrNotExist) { // just removed
			errs = append(errs, err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), trashPrefix) {
				errs = append(errs, fsutil.RemoveAll(s.Path(p, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

// withLock runs f while no other process or goroutine creates or removes volumes.
func (s Store) withLock(f func() error) error {
	lock, err := fsutil.WaitLock(string(s) + ".lock")
	if err != nil {
		return err
	}
	defer lock.Release()
	return f()
}

// List returns the volumes of a project, or of all if project is "", sorted by project and name.
func (s Store) List(project string) ([]atoll.Volume, error) {
	projects, err := listNames(string(s))
	if err != nil {
		return nil, atoll.E("volumes", project, kindOf(err), err)
	}
	var list []atoll.Volume
	for _, p := range projects {
		if project != "" && p != project {
			continue
		}
		volumes, err := listNames(s.Path(p, ""))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // just removed
			return nil, atoll.E("volumes", project, kindOf(err), err)
		}
		for _, name := range volumes {
			list = append(list, s.describeVolume(p, name))
		}
	}
	slices.SortFunc(list, func(a, b atoll.Volume) int {
		return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

// listNames returns the directories in dir whose names are valid for a volume or a project.
func listNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var list []string
	for _, e := range entries {
		if e.IsDir() && atoll.ValidName(e.Name()) {
			list = append(list, e.Name())
		}
	}
	return list, err
}

func (s Store) describeVolume(project, name string) atoll.Volume {
	v := atoll.Volume{Name: name, Project: project, Created: creationTime(s.Path(project, name))}
	if id, ok := sandboxID(name); ok && name == DataName(id) {
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
