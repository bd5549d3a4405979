//go:build unix && !linux

package procgroup

import (
	"errors"
	"os"
	"syscall"
)

func (h *Process) reap() (*os.ProcessState, error) {
	state, err := h.p.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reaped = true
	return state, err
}

// sweep kills the process's group. This system does not show the environments
// of processes, so that those which left the group are not found.
func sweep(m Mark, session func() int) error {
	pid := session()
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
