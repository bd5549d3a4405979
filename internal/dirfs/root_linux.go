package dirfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// openSub opens a directory below root. Unlike root.OpenRoot, it does not block if a
// pipe is in its place.
func openSub(root *os.Root, name string) (*os.Root, error) {
	dir, err := root.OpenFile(name, openFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if _, err := os.Lstat(procName(dir)); err != nil { // there is no /proc
		return root.OpenRoot(name)
	}
	return os.OpenRoot(procName(dir))
}
