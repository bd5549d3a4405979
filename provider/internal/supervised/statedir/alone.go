package statedir

import (
	"errors"
	"os"
	"time"
)

// Where the state of a lock cannot be asked for, whoever looks shares the lock with
// others who do, for a moment. A supervisor has it alone, and waits for that moment.

// lookTimeout is how long a supervisor waits for those who look: one may be stopped just then.
const lookTimeout = 5 * time.Second

// takeLockAlone is hold by a lock that can be shared.
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

// isLockedAlone is held by a lock that can be shared.
func isLockedAlone(f *os.File) bool {
	err := tryFileLock(f, false)
	if errors.Is(err, ErrBusy) {
		return true
	}
	unlockFile(f) // closing does it else, but not where a child is just being forked
	return false
}
