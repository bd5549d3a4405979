//go:build linux

package keeper

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// A terminal is a PTY of the host whose replica is donated to the sentry. The
// host's line discipline does the echoing and editing, but it has nobody to
// send signals to: the processes of its session live in another kernel. So
// what it would signal is signalled here, to the foreground process group that
// the sentry knows.

// BeforeInput finds the signals that data holds, if the terminal is in a mode
// that makes signals of characters. They are raised when the host's line
// discipline has seen the characters: it echoes them, and throws away what has
// been printed and not read, which must not be what the signalled print.
func (p *program) BeforeInput(master *os.File, data []byte) func() {
	conn, err := master.SyscallConn()
	if err != nil {
		return nil
	}
	var t *unix.Termios
	_ = conn.Control(func(fd uintptr) { t, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	if err != nil || t.Lflag&unix.ISIG == 0 {
		return nil
	}
	sigs := typedSignals(t, data)
	if len(sigs) == 0 {
		return nil
	}
	return func() {
		for _, sig := range sigs {
			_ = p.box.sentry.signalForeground(p.pid, sig) // nobody is left to hear it
		}
	}
}

// typedSignals returns the signals that the characters in data stand for. A
// character behind VLNEXT stands for itself.
func typedSignals(t *unix.Termios, data []byte) []atoll.Signal {
	var sigs []atoll.Signal
	quoted := false
	for _, c := range data {
		switch {
		case quoted:
			quoted = false
		case c == 0: // _POSIX_VDISABLE
		case t.Lflag&unix.IEXTEN != 0 && c == t.Cc[unix.VLNEXT]:
			quoted = true
		case c == t.Cc[unix.VINTR]:
			sigs = append(sigs, atoll.SIGINT)
		case c == t.Cc[unix.VQUIT]:
			sigs = append(sigs, atoll.SIGQUIT)
		case c == t.Cc[unix.VSUSP]:
			sigs = append(sigs, atoll.SIGTSTP)
		}
	}
	return sigs
}

// Resized tells the foreground that the terminal's size has changed.
func (p *program) Resized() { _ = p.box.sentry.signalForeground(p.pid, atoll.SIGWINCH) }
