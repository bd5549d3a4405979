package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A Mark tells a sweep after a crash about something outside of the state directory that is
// in no record yet. Its maker holds it as long as it lives.
type Mark struct {
	lock *fsutil.Lock
	path string
}

// markPrefix begins the names of marks in the directory of the sandboxes.
const markPrefix = ".mark-"

// Mark makes a mark that names what is about to be made: a cgroup and a run directory.
func (d Dir) Mark(group, run string) (*Mark, error) {
	path := d.Sandbox(markPrefix + atoll.NewID())
	l, err := fsutil.TryLock(path)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, []byte(group+"\n"+run), 0o600); err != nil {
		return nil, errors.Join(err, (&Mark{l, path}).Remove())
	}
	return &Mark{l, path}, nil
}

// Remove removes the mark: a record names the thing now, or nothing is left of it.
func (m *Mark) Remove() error {
	defer m.lock.Release()
	return os.Remove(m.path)
}

// AssignTo turns the mark into a note in the sandbox's directory: it names the sandbox's
// cgroup for programs that cannot read its record.
func (m *Mark) AssignTo(d Dir, id string) error {
	defer m.lock.Release()
	return os.Rename(m.path, d.cgroupNote(id))
}

func (d Dir) cgroupNote(id string) string { return filepath.Join(d.Sandbox(id), "cgroup") }

// Release leaves the mark to a sweep.
func (m *Mark) Release() { m.lock.Release() }

// parseMark returns the cgroup and the run directory that a mark names.
func parseMark(content []byte) (group, run string) {
	group, run, _ = strings.Cut(string(content), "\n")
	return group, run
}

// SweepMarks calls clearMarked with the content of each mark whose maker has gone. It
// removes the marks that clearMarked handles without an error.
func (d Dir) SweepMarks(clearMarked func(group, run string) error) error {
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
		content, err := os.ReadFile(path)
		if err == nil && len(content) > 0 { // else its maker died before it made anything
			err = clearMarked(parseMark(content))
		}
		if err == nil {
			err = os.Remove(path)
		}
		errs = append(errs, err)
		l.Release()
	}
	return errors.Join(errs...)
}
