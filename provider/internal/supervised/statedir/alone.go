package statedir

import (
	"errors"
	"os"
	"time"
)

// Where the system does not tell the state of a lock, a process that looks shares the lock with
// others that look, for a moment. A supervisor holds it alone, and waits for that moment.

// lookTimeout is the time that a supervisor waits for processes that look: one of them may
// have been suspended just then.
const lookTimeout = 5 * time.Second

// takeLockAlone is takeLock with a lock that can be shared.
func takeLockAlone(f *os.File) error {
	for deadline := time.Now().Add(lookTimeout); ; {
		err := tryFileLock(f, true)
		if !errors.Is(err, ErrBusy) || time.Now().After(deadline) {
			return err
		}
		if isLockedAlone(f) {
			return ErrBusy
		}
		time.Sleep(time.Millisecond)
	}
}

// isLockedAlone is isLocked for an open file, with a lock that can be shared.
func isLockedAlone(f *os.File) bool {
	err := tryFileLock(f, false)
	if errors.Is(err, ErrBusy) {
		return true
	}
	unlockFile(f) // closing f is not enough while a child process is just being forked
	return false
}
