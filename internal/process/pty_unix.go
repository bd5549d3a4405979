//go:build unix

package process

import (
	"os"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// openPTY creates a terminal. Package pty leaves the master in blocking mode, in which a
// Read has no deadline and does not end at Close; a second, non-blocking descriptor
// avoids that.
func openPTY() (master, replica *os.File, err error) {
	blocking, replica, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	defer blocking.Close()
	fd, err := unix.FcntlInt(blocking.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = syscall.SetNonblock(fd, true)
	}
	if err != nil {
		replica.Close()
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), blocking.Name()), replica, nil
}

// setSize sets the size of a terminal. It is safe during a Close of the master.
func setSize(master *os.File, size atoll.Size) error {
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	cerr := conn.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	if cerr != nil {
		return cerr
	}
	return err
}

// TerminalSize returns the size of a terminal; f is either of its sides.
func TerminalSize(f *os.File) (size atoll.Size, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return size, err
	}
	cerr := conn.Control(func(fd uintptr) {
		var ws *unix.Winsize
		if ws, err = unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil {
			size = atoll.Size{Rows: ws.Row, Cols: ws.Col}
		}
	})
	if cerr != nil {
		return size, cerr
	}
	return size, err
}
