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
// this keeper has gone. That of an AutoRemove sandbox is to be read while it
// lingers. A stop that was to free a full disk, for one, must not fail for it.
func (b *Box) saveMain() {
	if len(b.Job.Spec.Cmd) == 0 || b.Job.Spec.AutoRemove {
		return
	}
	err := b.engine.SaveMain(filepath.Join(b.Job.Dir, MainName))
	if err != nil && !errors.Is(err, atoll.ErrNotExist) { // it may never have been started
		b.Log.Warn("the output of the main process is lost", "err", err)
	}
}

// before is what the file about the main process of the sandbox's last life ends
// with, until it is certain that there is a new one.
const before = ".before"

// asideMain puts aside what is known of the last main process.
func asideMain(dir string) error {
	return unlessNone(os.Rename(filepath.Join(dir, MainName), filepath.Join(dir, MainName+before)))
}

// backMain takes asideMain back.
func backMain(dir string) error {
	return unlessNone(os.Rename(filepath.Join(dir, MainName+before), filepath.Join(dir, MainName)))
}

// dropMain forgets what was put aside.
func dropMain(dir string) error { return unlessNone(os.Remove(filepath.Join(dir, MainName+before))) }

func unlessNone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LoadMain returns what the last keeper saved of the main process of a sandbox
// that has ended, in its own directory dir; fs.ErrNotExist if it saved nothing.
func LoadMain(dir string) (atoll.Process, atoll.ProcessStatus, error) {
	table, err := process.Load(filepath.Join(dir, MainName))
	if err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	p, err := table.Get(atoll.MainProcess)
	return p, table.List()[0], err
}
