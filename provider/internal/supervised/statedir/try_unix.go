//go:build unix

package statedir

import (
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// tryFileLock takes the lock on the file, alone or shared, and never waits: it returns
// ErrBusy if another process has a conflicting lock.
func tryFileLock(f *os.File, alone bool) error {
	flags := syscall.LOCK_SH
	if alone {
		flags = syscall.LOCK_EX
	}
	return fsutil.Flock(f, flags|syscall.LOCK_NB)
}

// unlockFile releases the lock.
func unlockFile(f *os.File) { _ = fsutil.Flock(f, syscall.LOCK_UN) }
