package statedir

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryFileLock takes the lock on the file, alone or shared, and never waits: it returns
// ErrBusy if another process has a conflicting lock.
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

// unlockFile releases the lock.
func unlockFile(f *os.File) { _ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, lockedByte()) }

// lockedByte returns the position of the byte that is locked, behind the file's content:
// nobody else can read a locked byte.
func lockedByte() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: 0x7fffffff} }
