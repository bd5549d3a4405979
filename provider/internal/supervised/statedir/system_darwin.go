package statedir

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// unclean is the error of a damaged file system.
const unclean = syscall.EIO

// renameNew renames a directory to a name that nothing has; else it returns fs.ErrExist.
func renameNew(from, to string) error { return unix.RenamexNp(from, to, unix.RENAME_EXCL) }

// defaultRunBase returns the directory of run directories without XDG_RUNTIME_DIR. It is
// not in the user's own temporary directory, whose path alone takes half of a socket's
// address.
func defaultRunBase() string { return "/tmp/atoll-" + strconv.Itoa(os.Geteuid()) }
