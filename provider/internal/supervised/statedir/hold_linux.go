package statedir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// takeLock takes the supervisor's lock on the file, which lasts until the file is closed.
// It returns ErrBusy if another process has the lock.
func takeLock(f *os.File) error {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return ErrBusy
	}
	return err
}

// isLocked reports whether any process has the supervisor's lock at path. It asks for the lock's
// state and never takes the lock. A list asks once per sandbox: an os.File would need twice the system calls.
func isLocked(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &whole)
	return err == nil && whole.Type != unix.F_UNLCK
}
