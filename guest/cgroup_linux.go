package guest

import (
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// groupsAt is where programs look for control groups.
const groupsAt = "/sys/fs/cgroup"

const groupFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountGroups mounts the control groups of a kernel that others use, below a root: as they
// do, since a controller is in one hierarchy only.
func mountGroups(root string) error {
	text, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return err
	}
	first := hierarchies(string(text))
	if len(first) == 0 {
		return systemMount{"cgroup2", groupsAt, groupFlags, ""}.make(root)
	}
	if err := (systemMount{"tmpfs", groupsAt, groupFlags, "mode=0755"}).make(root); err != nil {
		return err
	}
	for _, names := range first {
		if err := (systemMount{"cgroup", path.Join(groupsAt, names), groupFlags, names}).make(root); err != nil {
			return err
		}
	}
	return nil
}

// hierarchies are the controllers of the first version that are in use, those of each
// hierarchy joined by commas, of what /proc/cgroups says: a name, the number of a hierarchy,
// which is 0 for the second version, how many groups, and whether it is enabled.
func hierarchies(text string) (all []string) {
	var numbers []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] == "#subsys_name" || f[1] == "0" || f[3] != "1" {
			continue
		}
		if i := slices.Index(numbers, f[1]); i >= 0 {
			all[i] += "," + f[0]
			continue
		}
		numbers, all = append(numbers, f[1]), append(all, f[0])
	}
	return all
}
