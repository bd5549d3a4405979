//go:build unix && !linux

package procgroup

import (
	"errors"
	"os"
	"syscall"
)

func (h *Process) reapProcess() (*os.ProcessState, error) {
	state, err := h.p.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reaped = true
	return state, err
}

// sweepMarked kills the group of the process. This system does not show the environments of
// processes, so that it misses processes that have left the group.
func sweepMarked(m Mark, session func() int) error {
	pid := session()
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
