package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// saveMain keeps what the main process printed, and its exit, for who asks when
// this supervisor has gone. That of an AutoRemove sandbox is to be read while it
// lingers. A stop that was to free a full disk, for one, must not fail for it.
func (s *Sandbox) saveMain() {
	if len(s.Job.Spec.Cmd) == 0 || s.Job.Spec.AutoRemove {
		return
	}
	err := s.engine.SaveMain(filepath.Join(s.Job.Dir, MainName))
	if err != nil && !errors.Is(err, atoll.ErrNotExist) { // it may never have been started
		s.Log.Warn("the output of the main process is lost", "err", err)
	}
}

// asideSuffix is what the file about the main process of the sandbox's last life ends
// with, until it is certain that there is a new one.
const asideSuffix = ".before"

// putMainAside puts aside what is known of the last main process.
func putMainAside(dir string) error {
	return ignoreNotExist(os.Rename(filepath.Join(dir, MainName), filepath.Join(dir, MainName+asideSuffix)))
}

// restoreMain takes asideMain back.
func restoreMain(dir string) error {
	return ignoreNotExist(os.Rename(filepath.Join(dir, MainName+asideSuffix), filepath.Join(dir, MainName)))
}

// dropMainAside forgets what was put aside.
func dropMainAside(dir string) error {
	return ignoreNotExist(os.Remove(filepath.Join(dir, MainName+asideSuffix)))
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LoadMain returns what the last supervisor saved of the main process of a sandbox
// that has ended, in its own directory dir; fs.ErrNotExist if it saved nothing.
func LoadMain(dir string) (atoll.Process, atoll.ProcessStatus, error) {
	table, err := process.Load(filepath.Join(dir, MainName))
	if err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	p, err := table.Get(atoll.MainProcess)
	return p, table.List()[0], err
}
