package api

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// shortPath calls use with a path for the socket that fits in an address: a
// long one is reached through a descriptor of its directory.
func shortPath(path string, use func(short string) error) error {
	if len(path) <= maxSocketPath {
		return use(path)
	}
	const oPath = 0x200000 // O_PATH
	dir, err := syscall.Open(filepath.Dir(path), oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer syscall.Close(dir)
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
}
