//go:build unix

package objectstore

import (
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// nonblock keeps who opens a pipe from waiting for its other end.
const nonblock = syscall.O_NONBLOCK

// locksWork says that tryLock tells whether another program has the lock.
const locksWork = true

// tryLock locks a file until it is closed. It is fsutil.ErrLocked if another has it.
func tryLock(file *os.File) error { return fsutil.Flock(file, syscall.LOCK_EX|syscall.LOCK_NB) }

// unlockFile lets go, also where a child on its way to its own program still has the
// descriptor.
func unlockFile(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) // closing does it else
	_ = file.Close()
}

func syncDir(dir *os.File) error { return dir.Sync() }
