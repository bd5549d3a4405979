package procgroup

import (
	"errors"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// hangUp tells those who were of one process group with the leader of a terminal that it
// has ended, where the kernel does not: gVisor's has the terminal's foreground go on. It
// knows that group, and shows it to nobody outside of the session; unless a shell has put
// a job into the foreground, which it hangs up on itself, it is the leader's own. The
// caller has the leader's PID for it alone, see Process.mu.
func (h *Process) hangUp() {
	if !h.tty || !forgetsTerminals() {
		return
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGCONT} {
		_ = syscall.Kill(-h.p.Pid, sig) // most often nobody is left
	}
}

// forgetsTerminals reports whether the kernel is one that does not hang up: it does not
// tell whoever has a terminal what is in the foreground of that, either.
var forgetsTerminals = sync.OnceValue(func() bool {
	master, replica, err := pty.Open()
	if err != nil {
		return false
	}
	defer master.Close()
	defer replica.Close()
	_, err = unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPGRP)
	return errors.Is(err, unix.ENOTTY)
})
