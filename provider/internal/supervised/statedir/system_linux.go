package statedir

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// unclean is the error of a damaged file system.
const unclean = syscall.EUCLEAN

// renameNew renames a directory to a name that nothing has; else it returns fs.ErrExist.
func renameNew(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}

// defaultRunBase returns the directory of run directories without XDG_RUNTIME_DIR.
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
