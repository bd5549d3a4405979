package dirfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// keepsInodes reports whether the file system of the tree's root never renumbers its
// files. Those of FUSE and gVisor number them anew with each mount.
func keepsInodes(t tree) bool {
	dir, err := t.OpenFile(".", os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return false
	}
	return st.Type != unix.FUSE_SUPER_MAGIC && st.Type != unix.V9FS_MAGIC
}
