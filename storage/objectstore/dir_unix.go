//go:build unix

package objectstore

import (
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// nonblock keeps the opening of a pipe from waiting for its other end.
const nonblock = syscall.O_NONBLOCK

// locksWork reports whether tryLock detects locks of other programs.
const locksWork = true

// tryLock locks a file until it is closed, or returns fsutil.ErrLocked if another
// program holds the lock.
func tryLock(file *os.File) error { return fsutil.Flock(file, syscall.LOCK_EX|syscall.LOCK_NB) }

// unlockFile unlocks and closes the file. It unlocks explicitly, since a child process
// between fork and exec may still have the descriptor.
func unlockFile(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) // if this fails, closing unlocks
	_ = file.Close()
}

func syncDir(dir *os.File) error { return dir.Sync() }
