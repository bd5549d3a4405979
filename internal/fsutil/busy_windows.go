package fsutil

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// Windows denies to replace or rename a file, or a directory with a file in it, as
// long as anybody has that open, and to open one that is just being replaced.

// busyTime is how long others, who look only, may take.
const busyTime = 2 * time.Second

// whileBusy calls do again as long as others are in its way.
func whileBusy(do func() error) error {
	for deadline := time.Now().Add(busyTime); ; {
		err := do()
		busy := errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION)
		if !busy || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// Rename is os.Rename, also while others look at what is renamed or replaced.
func Rename(from, to string) error {
	return whileBusy(func() error { return os.Rename(from, to) })
}

// ReadFile is os.ReadFile, also of a file that is just being replaced.
func ReadFile(path string) (data []byte, err error) {
	err = whileBusy(func() (err error) {
		data, err = os.ReadFile(path)
		return err
	})
	return data, err
}
