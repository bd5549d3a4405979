//go:build unix

package statedir

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll/internal/disk"
)

// Where the state of a lock cannot be asked for, whoever looks shares the lock with
// others who do, for a moment. A keeper has it alone, and waits for that moment.

// lookTime is how long a keeper waits for those who look: one may be stopped just then.
const lookTime = 5 * time.Second

// holdAlone is hold by flock(2).
func holdAlone(f *os.File) error {
	for deadline := time.Now().Add(lookTime); ; {
		err := disk.Flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, ErrBusy) || time.Now().After(deadline) {
			return err
		}
		if heldAlone(f) {
			return ErrBusy
		}
		time.Sleep(time.Millisecond)
	}
}

// heldAlone is held by flock(2).
func heldAlone(f *os.File) bool {
	err := disk.Flock(f, syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, ErrBusy) {
		return true
	}
	_ = disk.Flock(f, syscall.LOCK_UN) // closing does it else, but not where a child is just being forked
	return false
}
