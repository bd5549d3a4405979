package guest

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountFile mounts the only file of a share.
func mountFile(tag, target string, flags uintptr) error {
	dir := "/mnt/" + tag
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(tag, dir, "virtiofs", flags, ""); err != nil {
		return err
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)                                        // the file stays mounted
	return unix.Mount(filepath.Join(dir, SharedFile), target, "", unix.MS_BIND, "") // with the same flags
}
