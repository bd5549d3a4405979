package statedir

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryFileLock takes the lock on the file, alone or with others, and never waits: it is
// ErrBusy when somebody is in the way.
func tryFileLock(f *os.File, alone bool) error {
	flags := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if alone {
		flags |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, lockedByte())
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrBusy
	}
	return err
}

// unlockFile gives it back.
func unlockFile(f *os.File) { _ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, lockedByte()) }

// lockedByte is the byte that is locked, behind all that is in the file: nobody else can
// read a locked one.
func lockedByte() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: 0x7fffffff} }
