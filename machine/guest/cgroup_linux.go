package guest

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupMountPoint is the usual mount point of control groups.
const cgroupMountPoint = "/sys/fs/cgroup"

// mountGroups mounts, below a root, the control groups of a kernel with other users: in their
// hierarchies, since a controller is in one hierarchy only.
func mountGroups(root string) error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	for _, m := range groupMounts(string(text)) {
		if err := m.mountBelow(root); err != nil {
			return err
		}
	}
	return nil
}

// groupMounts returns the mounts of the hierarchies of a process, from the text of
// /proc/self/cgroup: each line has a number, controllers or the name of a hierarchy, and a path. A
// line without controllers is version 2, which is the only hierarchy unless version 1 has a
// controller.
func groupMounts(text string) []systemMount {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	second := systemMount{"cgroup2", cgroupMountPoint, flags, ""}
	var first []systemMount
	for line := range strings.Lines(text) {
		_, what, _ := strings.Cut(line, ":")
		what, _, _ = strings.Cut(what, ":")
		if what == "" {
			continue
		}
		data := what
		name, named := strings.CutPrefix(what, "name=")
		if named {
			data = "none," + what
		}
		first = append(first, systemMount{"cgroup", path.Join(cgroupMountPoint, name), flags, data})
	}
	if len(first) == 0 {
		return []systemMount{second}
	}
	second.target = path.Join(cgroupMountPoint, "unified")
	return append([]systemMount{{"tmpfs", cgroupMountPoint, flags, "mode=0755"}}, append(first, second)...)
}
