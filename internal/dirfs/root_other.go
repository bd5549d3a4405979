//go:build !linux

package dirfs

import (
	"os"
	"syscall"
)

// openSub opens a directory below root.
func openSub(root *os.Root, name string) (*os.Root, error) {
	info, err := root.Stat(name)
	if err == nil && !info.IsDir() { // OpenRoot would block on a pipe
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, err
	}
	return root.OpenRoot(name)
}
