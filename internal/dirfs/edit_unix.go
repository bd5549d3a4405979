//go:build unix

package dirfs

import (
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// setFileTimes changes the times of an open file.
func setFileTimes(file *os.File, t atoll.FileTimes) error {
	times := []unix.Timeval{unix.NsecToTimeval(t.Accessed.UnixNano()), unix.NsecToTimeval(t.Modified.UnixNano())}
	return unix.Futimes(int(file.Fd()), times)
}

// setLinkTimes changes the times of a link itself.
func setLinkTimes(t tree, rel string, times atoll.FileTimes) error {
	dir, err := t.OpenFile(path.Dir(rel), openFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	at := func(t time.Time) unix.Timespec { return unix.NsecToTimespec(t.UnixNano()) }
	return unix.UtimesNanoAt(int(dir.Fd()), path.Base(rel), []unix.Timespec{at(times.Accessed), at(times.Modified)}, unix.AT_SYMLINK_NOFOLLOW)
}
