package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A Mark tells those who come after a crash of something outside of the state
// directory that is in no record yet. It is held as long as its maker lives.
type Mark struct {
	lock *fsutil.Lock
	path string
}

// markPrefix is what the names of marks begin with, in the directory of the sandboxes.
const markPrefix = ".mark-"

// Mark makes a mark that says what is going to be made.
func (d Dir) Mark(what string) (*Mark, error) {
	path := d.Sandbox(markPrefix + atoll.NewID())
	l, err := fsutil.TryLock(path)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, []byte(what), 0o600); err != nil {
		return nil, errors.Join(err, (&Mark{l, path}).Remove())
	}
	return &Mark{l, path}, nil
}

// Remove takes the mark away: there is a record now, or nothing left.
func (m *Mark) Remove() error {
	defer m.lock.Release()
	return os.Remove(m.path)
}

// AssignTo makes the mark a note of the sandbox's: it says what cgroup the sandbox
// has, for those who cannot read its record.
func (m *Mark) AssignTo(d Dir, id string) error {
	defer m.lock.Release()
	return os.Rename(m.path, d.cgroupNote(id))
}

func (d Dir) cgroupNote(id string) string { return filepath.Join(d.Sandbox(id), "cgroup") }

// Release leaves the mark for a sweep.
func (m *Mark) Release() { m.lock.Release() }

// SweepMarks calls clear with what each mark says whose maker has gone. Those
// that are cleared without an error are removed.
func (d Dir) SweepMarks(clear func(what string) error) error {
	paths, err := d.listPrefixed("sandboxes", markPrefix)
	errs := []error{err}
	for _, path := range paths {
		l, err := fsutil.TryLockExisting(path)
		if errors.Is(err, ErrBusy) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		what, err := os.ReadFile(path)
		if err == nil && len(what) > 0 { // else its maker died before he made anything
			err = clear(string(what))
		}
		if err == nil {
			err = os.Remove(path)
		}
		errs = append(errs, err)
		l.Release()
	}
	return errors.Join(errs...)
}
