package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// saveMain saves the output and the exit of the main process for readers that come after
// this supervisor has gone. Those of an AutoRemove sandbox must be read while it lingers. A
// failure is only logged, because a stop may be needed to free a full disk.
func (s *Sandbox) saveMain() {
	if len(s.Job.Spec.Cmd) == 0 || s.Job.Spec.AutoRemove {
		return
	}
	err := s.engine.SaveMain(filepath.Join(s.Job.Dir, MainName))
	if err != nil && !errors.Is(err, atoll.ErrNotExist) { // it may never have been started
		s.Log.Warn("cannot save the output of the main process", "err", err)
	}
}

// asideSuffix ends the name of the file with the main process of the previous run, until a
// new main process runs.
const asideSuffix = ".before"

// putMainAside renames the file of the previous main process.
func putMainAside(dir string) error {
	return ignoreNotExist(os.Rename(filepath.Join(dir, MainName), filepath.Join(dir, MainName+asideSuffix)))
}

// restoreMain undoes putMainAside.
func restoreMain(dir string) error {
	return ignoreNotExist(os.Rename(filepath.Join(dir, MainName+asideSuffix), filepath.Join(dir, MainName)))
}

// dropMainAside deletes the renamed file.
func dropMainAside(dir string) error {
	return ignoreNotExist(os.Remove(filepath.Join(dir, MainName+asideSuffix)))
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LoadMain returns the main process of an ended sandbox, as its last supervisor saved it in
// the sandbox's directory dir; fs.ErrNotExist if it saved nothing.
func LoadMain(dir string) (atoll.Process, atoll.ProcessStatus, error) {
	table, err := process.Load(filepath.Join(dir, MainName))
	if err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	p, err := table.Get(atoll.MainProcess)
	return p, table.List()[0], err
}
