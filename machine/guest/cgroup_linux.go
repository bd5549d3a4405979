package guest

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// groupsAt is where programs look for control groups.
const groupsAt = "/sys/fs/cgroup"

// mountGroups mounts the control groups of a kernel that others use, below a root: as they
// do, since a controller is in one hierarchy only.
func mountGroups(root string) error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	for _, m := range groupMounts(string(text)) {
		if err := m.make(root); err != nil {
			return err
		}
	}
	return nil
}

// groupMounts are those of the hierarchies that a process is in, as /proc/self/cgroup says:
// on each line a number, controllers or the name of a hierarchy, and a path. Those without
// are the second version's, which is alone where no controller is another one's.
func groupMounts(text string) []systemMount {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	second := systemMount{"cgroup2", groupsAt, flags, ""}
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
		first = append(first, systemMount{"cgroup", path.Join(groupsAt, name), flags, data})
	}
	if len(first) == 0 {
		return []systemMount{second}
	}
	second.target = path.Join(groupsAt, "unified")
	return append([]systemMount{{"tmpfs", groupsAt, flags, "mode=0755"}}, append(first, second)...)
}
