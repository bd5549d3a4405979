//go:build unix

package dirfs

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

func ownerOf(info fs.FileInfo) (uid, gid int) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	return int(st.Uid), int(st.Gid)
}

// changeOf returns the time of the last change of the file or its metadata, and the
// number of the file on its file system.
func changeOf(info fs.FileInfo) (changed time.Time, inode uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return changed, 0
	}
	return time.Unix(changeTime(st).Unix()), st.Ino
}

// inodeOf returns an id of a file with several names; ok is false for a file with one
// name.
func inodeOf(info fs.FileInfo) (id [2]uint64, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 {
		return id, false
	}
	return [2]uint64{uint64(st.Dev), st.Ino}, true
}

// syncDir writes the names in a directory to disk.
func syncDir(dir tree) error {
	file, err := dir.OpenFile(".", os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}
