package procgroup

import (
	"errors"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// hangUp sends SIGHUP to the process group of the leader of a terminal when the leader has
// ended, on kernels that do not do so: on gVisor's, the terminal's foreground job goes on.
// That kernel does not show the foreground group outside the session. It is the leader's
// own group, unless a shell has put a job into the foreground, which the shell hangs up
// itself. The caller makes sure that the leader's PID is not reused, see Process.mu.
func (h *Process) hangUp() {
	if !h.tty || !lacksHangup() {
		return
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGCONT} {
		_ = syscall.Kill(-h.p.Pid, sig) // most often the group is empty
	}
}

// lacksHangup reports whether the kernel does not hang up on the end of a leader. Such a
// kernel does not show the foreground group of a terminal to its master, either.
var lacksHangup = sync.OnceValue(func() bool {
	master, replica, err := pty.Open()
	if err != nil {
		return false
	}
	defer master.Close()
	defer replica.Close()
	_, err = unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPGRP)
	return errors.Is(err, unix.ENOTTY)
})
