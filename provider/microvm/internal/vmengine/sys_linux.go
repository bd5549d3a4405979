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

// Mounts means that a process has its own mounts: then it can share files, and share directories
// read-only.
const Mounts = true

// Usage means that the resource usage of a machine is known.
const Usage = true

// bindMount makes a file or directory appear at another place, too, in this process's mount
// namespace.
func bindMount(source, at string) error {
	return unix.Mount(source, at, "", unix.MS_BIND|unix.MS_REC, "")
}

// makeReadOnly makes the mount at a place, and those below it, read-only.
func makeReadOnly(at string) error {
	return unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// detachMount removes the mount at a place, if there is one.
func detachMount(at string) error {
	err := unix.Unmount(at, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// childTime returns the CPU time of this process's children. It skips children that it cannot read.
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
