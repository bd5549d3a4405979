//go:build unix

package workspace

import (
	"os"
	"os/exec"
	"syscall"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// isolateCommand gives cmd a session of its own, so that it has no terminal for prompts, and so
// that its descendants are killed with it.
func isolateCommand(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// holdClone prevents removeOldClones from removing a clone until release.
func holdClone(dir string) (release func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := fsutil.Flock(f, syscall.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// removeUnheld removes a clone unless it is in use.
func removeUnheld(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := fsutil.Flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	return fsutil.RemoveAll(dir)
}
