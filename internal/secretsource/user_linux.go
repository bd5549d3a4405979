package secretsource

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// outsideUser returns the attributes of a process that has the id which its user has outside of the user namespace of this process, nil if
// that is its id anyway. The session bus compares the id that a client sends with the id that the kernel reports.
func outsideUser() *syscall.SysProcAttr {
	uid, gid := os.Geteuid(), os.Getegid()
	outerUID, outerGID := outsideID("/proc/self/uid_map", uid), outsideID("/proc/self/gid_map", gid)
	if outerUID == uid {
		return nil
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: outerUID, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: outerGID, HostID: gid, Size: 1}},
	}
}

// outsideID returns the id that an id of this user namespace has outside, by the file that maps ids; the id itself if that cannot be read.
func outsideID(path string, id int) int {
	f, err := os.Open(path)
	if err != nil {
		return id
	}
	defer f.Close()
	return mapID(bufio.NewScanner(f), id)
}

// mapID returns the id outside for an id inside, by the lines of a map: first id inside, first id outside, and number of ids.
func mapID(lines *bufio.Scanner, id int) int {
	for lines.Scan() {
		var inside, outside, n int
		if _, err := fmt.Fscan(strings.NewReader(lines.Text()), &inside, &outside, &n); err == nil && id >= inside && id-inside < n {
			return outside + id - inside
		}
	}
	return id
}
