package statedir

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// unclean is the error of a file system that is damaged.
const unclean = syscall.EIO

// renameNew gives a directory a name that nothing has: else it is fs.ErrExist.
func renameNew(from, to string) error { return unix.RenamexNp(from, to, unix.RENAME_EXCL) }

// defaultRunBase is where run directories are that no variable places: not in the user's
// own directory for temporary files, whose path alone is half of what a socket's
// may have.
func defaultRunBase() string { return "/tmp/atoll-" + strconv.Itoa(os.Geteuid()) }
