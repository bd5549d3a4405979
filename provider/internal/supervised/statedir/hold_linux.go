package statedir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// hold takes the keeper's lock, which is on the file, until that is closed. It is
// ErrBusy if another has it.
func hold(f *os.File) error {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return ErrBusy
	}
	return err
}

// held reports whether somebody has the keeper's lock. It asks for the lock's
// state and never takes it.
func held(f *os.File) bool {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &whole)
	return err == nil && whole.Type != unix.F_UNLCK
}
