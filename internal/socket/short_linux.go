package socket

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// useShortPath reaches the socket through a descriptor of its directory.
func useShortPath(path string, use func(short string) error) error {
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
