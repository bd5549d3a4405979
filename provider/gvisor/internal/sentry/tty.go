//go:build linux

package sentry

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// A terminal is a PTY of the host whose replica is given to the sentry. The
// host's line discipline echoes and edits input, but it cannot
// send signals: the processes of its session live in another kernel. So the
// characters that stand for signals do not go there. This process echoes and raises
// them, to the foreground process group that the sentry knows.
//
// Passing them to the host as well would fail now and then: it reads them
// later, and then discards output; the signalled programs
// may have printed some by then.

// Input implements process.Terminal.
func (p *program) Input(master *os.File, data []byte) error {
	for len(data) > 0 {
		n, sig, echo := p.typedSignal(master, data)
		if sig == 0 {
			_, err := master.Write(data)
			return err
		}
		if n > 1 {
			if _, err := master.Write(data[:n-1]); err != nil {
				return err
			}
		}
		interruptTerminal(master, echo)
		_ = p.engine.sentry.signalForeground(p.pid, sig) // it fails if the foreground has ended
		data = data[n:]
	}
	return nil
}

// typedSignal returns the first signal in data in the terminal's current mode, the number
// of bytes up to it, and the text that echoes its character.
func (p *program) typedSignal(master *os.File, data []byte) (n int, sig atoll.Signal, echo string) {
	_ = onTerminal(master, func(fd int) error { // whose failure the write meets as well
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		if n, sig = p.keys.typedSignal(t, data); sig != 0 && t.Lflag&unix.ECHO != 0 && t.Lflag&unix.ECHOCTL != 0 {
			echo = "^" + string(rune(data[n-1]^0x40))
		}
		return nil
	})
	return n, sig, echo
}

// interruptTerminal does to the terminal what a signal does: it drops typed input that was
// not read, and echoes the signal's character.
func interruptTerminal(master *os.File, echo string) {
	_ = onTerminal(master, func(fd int) error {
		// It must not become this process's own terminal, nor block.
		replica, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		defer unix.Close(int(replica))
		err1 := unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCOFLUSH) // input on its way to the line discipline
		err2 := unix.IoctlSetInt(int(replica), unix.TCFLSH, unix.TCIFLUSH)
		_, err3 := unix.Write(int(replica), []byte(echo))
		return errors.Join(err1, err2, err3)
	})
}

func onTerminal(f *os.File, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := conn.Control(func(fd uintptr) { err = fn(int(fd)) })
	return errors.Join(ctlErr, err)
}

// A keyboard remembers whether the next character is quoted, because it may arrive alone.
type keyboard struct {
	mu     sync.Mutex
	mode   unix.Termios // the terminal's mode at the last input
	quoted bool
}

// typedSignal returns the first signal for which a character in data stands in mode t, and
// the number of bytes up to and including that character; 0 if there is none.
func (k *keyboard) typedSignal(t *unix.Termios, data []byte) (n int, sig atoll.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mode != *t {
		k.mode, k.quoted = *t, false
	}
	if t.Lflag&unix.ISIG == 0 {
		return 0, 0
	}
	quotes := t.Lflag&unix.ICANON != 0 && t.Lflag&unix.IEXTEN != 0
	for i, c := range data {
		switch {
		case k.quoted:
			k.quoted = false
		case c == 0: // _POSIX_VDISABLE
		case c == t.Cc[unix.VINTR]:
			return i + 1, atoll.SIGINT
		case c == t.Cc[unix.VQUIT]:
			return i + 1, atoll.SIGQUIT
		case c == t.Cc[unix.VSUSP]:
			return i + 1, atoll.SIGTSTP
		case c == t.Cc[unix.VLNEXT]:
			k.quoted = quotes
		}
	}
	return 0, 0
}

// Resized tells the foreground that the terminal's size has changed.
func (p *program) Resized() { _ = p.engine.sentry.signalForeground(p.pid, atoll.SIGWINCH) }
