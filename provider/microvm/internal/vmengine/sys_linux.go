package vmengine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mounts says that a process has mounts of its own: with them files can be shared, and
// directories so that nobody can change them.
const Mounts = true

// Usage says that it is known what a machine uses.
const Usage = true

// bind has a file or directory be at another place, too, in this process's mount namespace.
func bind(source, at string) error {
	return unix.Mount(source, at, "", unix.MS_BIND|unix.MS_REC, "")
}

// seal has nobody change what is mounted at a place, or below it.
func seal(at string) error {
	return unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// unmount takes away what is mounted at a place, if anything is.
func unmount(at string) error {
	err := unix.Unmount(at, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// childTime is the CPU time that the children of this process have used. What cannot be
// read counts nothing.
func childTime() (sum time.Duration, err error) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		pids, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(pids)) {
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // a name may hold anything
			for i := 11; i <= 12 && i < len(fields); i++ {                  // utime and stime; see proc_pid_stat(5)
				n, _ := strconv.ParseInt(string(fields[i]), 10, 64)
				sum += time.Duration(n) * tick
			}
		}
	}
	return sum, nil
}
