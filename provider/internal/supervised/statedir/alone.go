package statedir

import (
	"errors"
	"os"
	"time"
)

// Where the state of a lock cannot be asked for, whoever looks shares the lock with
// others who do, for a moment. A keeper has it alone, and waits for that moment.

// lookTime is how long a keeper waits for those who look: one may be stopped just then.
const lookTime = 5 * time.Second

// holdAlone is hold by a lock that can be shared.
func holdAlone(f *os.File) error {
	for deadline := time.Now().Add(lookTime); ; {
		err := try(f, true)
		if !errors.Is(err, ErrBusy) || time.Now().After(deadline) {
			return err
		}
		if heldAlone(f) {
			return ErrBusy
		}
		time.Sleep(time.Millisecond)
	}
}

// heldAlone is held by a lock that can be shared.
func heldAlone(f *os.File) bool {
	err := try(f, false)
	if errors.Is(err, ErrBusy) {
		return true
	}
	letGo(f) // closing does it else, but not where a child is just being forked
	return false
}
