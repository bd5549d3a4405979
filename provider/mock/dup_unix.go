//go:build unix

package mock

import (
	"os"
	"syscall"
)

// duplicateFile returns another descriptor for the same open file. Close of the returned file ends a
// Read that waits.
func duplicateFile(f *os.File) (*os.File, error) {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
