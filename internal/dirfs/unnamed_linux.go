package dirfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openUnnamed makes a file in dir that has no name so far: it is gone when it
// is closed without one, also by a kill. Not every file system knows such
// files, and without /proc they can be given no name.
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

// giveName makes it a file of dir like others. A name that is taken is an error.
func giveName(file *os.File, dir tree, name string) error {
	d, err := dir.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Linkat(unix.AT_FDCWD, procName(file), int(d.Fd()), name, unix.AT_SYMLINK_FOLLOW)
}

func procName(file *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", file.Fd()) }
