//go:build unix

package workspace

import (
	"os"
	"os/exec"
	"syscall"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// alone gives cmd a session of its own: there is no terminal to ask at, and what
// it starts ends with it.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// hold keeps a clone from being removed by tidy until release.
func hold(dir string) (release func(), err error) {
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

// removeUnheld removes a clone that nobody holds.
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
