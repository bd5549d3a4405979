package dirfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openUnnamed creates a file in dir without a name. It disappears if it is closed
// before giveName, also by a kill. It fails on file systems without such files, and
// without /proc, which giveName needs.
func openUnnamed(dir tree) (*os.File, error) {
	file, err := dir.OpenFile(".", unix.O_TMPFILE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(procName(file)); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// giveName gives a file of openUnnamed a name in dir. A name that exists is an error.
func giveName(file *os.File, dir tree, name string) error {
	d, err := dir.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Linkat(unix.AT_FDCWD, procName(file), int(d.Fd()), name, unix.AT_SYMLINK_FOLLOW)
}

func procName(file *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", file.Fd()) }
