package volume

import (
	"time"

	"golang.org/x/sys/unix"
)

// creationTime returns when a directory was created, or its modification time if the file system
// does not know.
func creationTime(dir string) time.Time {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME|unix.STATX_MTIME, &st); err != nil {
		return time.Time{} // just removed
	}
	if st.Mask&unix.STATX_BTIME == 0 {
		return time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec))
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
}
