package supervised

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Self returns a path by which this program can be executed as supervisor, even if another
// file has replaced its own.
func Self() (string, error) { return "/proc/self/exe", nil }

// supervisorAttr gives a supervisor its session and namespaces: a mount namespace and,
// unless this process is root, a user namespace in which the supervisor is root. group is
// the directory of the cgroup that it is cloned into; nil for none. If ids is not nil, the
// supervisor waits for SubIDs.mapProcess.
func supervisorAttr(group *os.File, ids *SubIDs) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS}
	if uid := os.Geteuid(); uid != 0 && ids != nil {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		for c := range uintptr(unix.CAP_LAST_CAP + 1) { // it is not root there when it is executed
			attr.AmbientCaps = append(attr.AmbientCaps, c)
		}
	} else if uid != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if group != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
	}
	return attr
}
