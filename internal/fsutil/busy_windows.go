package fsutil

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// Windows refuses to replace or rename a file, or a directory that contains a file, while
// any process has the file open, and to open a file while it is being replaced.

// busyTime is the time after which retryBusy gives up.
const busyTime = 2 * time.Second

// retryBusy calls do again while another process blocks it, for busyTime at most.
func retryBusy(do func() error) error {
	for deadline := time.Now().Add(busyTime); ; {
		err := do()
		busy := errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION)
		if !busy || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// Rename is os.Rename, and works also while other processes have the files open for a
// short time.
func Rename(from, to string) error {
	return retryBusy(func() error { return os.Rename(from, to) })
}

// ReadFile is os.ReadFile, and works also while another process replaces the file.
func ReadFile(path string) (data []byte, err error) {
	err = retryBusy(func() (err error) {
		data, err = os.ReadFile(path)
		return err
	})
	return data, err
}
