package statedir

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// unclean is the error of a file system that is damaged.
const unclean = syscall.EUCLEAN

// renameNew gives a directory a name that nothing has: else it is fs.ErrExist.
func renameNew(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}

// defaultRunBase is where run directories are that no variable places.
func defaultRunBase() string {
	uid := strconv.Itoa(os.Geteuid())
	own := filepath.Join("/run/user", uid)
	switch {
	case uid == "0":
		return "/run/atoll"
	case isOwnDir(own):
		return filepath.Join(own, "atoll")
	}
	return filepath.Join(os.TempDir(), "atoll-"+uid)
}
