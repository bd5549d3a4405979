package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leafName is the name of the group, in a base of v2, of processes that are not in a sandbox's: the kernel limits no groups below
// one that has processes itself.
const leafName = "atoll-leaf"

// FindBase returns the group below which this process makes groups: the root if it may, else the nearest group above its own that it
// owns. If it owns no more than its own group, on v2 it moves into a leaf there first, with the processes that it started. On v2
// FindBase enables the missing controllers: this is the only way to find out whether the kernel refuses that, for instance
// because the processes of a container are in the root that it sees.
func (h Hierarchy) FindBase() Base {
	own, err := h.own()
	if err != nil {
		return Base{}
	}
	if !h.v2 {
		return h.findV1(own)
	}
	if h.writable(h.root) {
		return h.tryBase("/")
	}
	groups := h.delegatedGroups(own[""])
	if len(groups) == 0 {
		return Base{}
	}
	for _, group := range groups[1:] {
		if b := h.tryBase(group); b.canLimit() {
			return b
		}
	}
	// systemd starts a service again in its own group, which must stay without controllers for that.
	if group := groups[0]; !strings.HasSuffix(group, ".service") {
		for range vacateTries {
			if !h.vacateGroup(group) {
				break
			}
			if b := h.tryBase(group); b.canLimit() {
				return b
			}
		}
	}
	return Base{}
}

// canLimit reports whether groups below b can have a limit.
func (b Base) canLimit() bool { return b.Memory || b.CPU || b.Processes }

// findV1 is FindBase on v1, where a base has the same path for each controller that can be used.
func (h Hierarchy) findV1(own map[string]string) (b Base) {
	nearest := func(controller string) string {
		if h.writable(filepath.Join(h.root, controller)) {
			return "/"
		}
		for group := own[controller]; isBelowRoot(group); group = path.Dir(group) {
			if h.isUsable(filepath.Join(h.root, controller, group)) {
				return group
			}
		}
		return ""
	}
	for _, controller := range []string{"memory", "cpu", "pids", "freezer"} {
		if b.Path = nearest(controller); b.Path != "" {
			break
		}
	}
	// A thread that clones a process into a group goes back to its own.
	returns := func(controller string) bool {
		return b.Path == "/" || h.writable(filepath.Join(h.root, controller, own[controller], "tasks"))
	}
	has := func(controller string) bool {
		dir := filepath.Join(h.root, controller, b.Path)
		return b.Path == "/" && h.writable(dir) || b.Path != "" && h.isUsable(dir)
	}
	b.Memory, b.CPU = has("memory"), has("cpu")
	b.Processes, b.Freeze = has("pids") && returns("pids"), has("freezer") && returns("freezer")
	return b
}

// isBelowRoot reports whether a group of /proc/self/cgroup is one below the root that this process sees.
func isBelowRoot(group string) bool {
	return strings.HasPrefix(group, "/") && group != "/" && !strings.HasPrefix(group, "/..")
}

// isUsable reports whether this process may make groups in dir, and move between dir and them.
func (h Hierarchy) isUsable(dir string) bool {
	return h.writable(dir) && h.writable(filepath.Join(dir, "cgroup.procs"))
}

// tryBase returns the base at group on v2, and enables its controllers.
func (h Hierarchy) tryBase(group string) Base {
	dir := filepath.Join(h.root, group)
	if group != "/" && !h.isUsable(dir) {
		return Base{}
	}
	return Base{
		Path: group, Freeze: true,
		Memory: h.enableController(dir, "memory"), CPU: h.enableController(dir, "cpu"), Processes: h.enableController(dir, "pids"),
	}
}

// enableController reports whether the groups of v2 in dir have the controller, and enables it if necessary.
func (h Hierarchy) enableController(dir, controller string) bool {
	file := filepath.Join(dir, "cgroup.subtree_control")
	return hasController(file, controller) ||
		hasController(filepath.Join(dir, "cgroup.controllers"), controller) && h.write(file, "+"+controller) == nil
}

// hasController reports whether a file lists the controller.
func hasController(file, controller string) bool {
	data, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(data)), controller)
}

// delegatedGroups returns this process's own group of v2 and those above it, as far as systemd leaves them to the programs of a unit.
// Without systemd it returns all of them.
func (h Hierarchy) delegatedGroups(own string) (groups []string) {
	unit := ""
	for group := own; isBelowRoot(group); group = path.Dir(group) {
		groups = append(groups, group)
		name := path.Base(group)
		switch isUnit := strings.HasSuffix(name, ".service") || strings.HasSuffix(name, ".scope"); {
		case strings.HasPrefix(name, "user@") && isUnit: // the user's systemd, which owns all groups below
			if unit == "" || h.delegated(filepath.Join(h.root, group)) && !h.delegated(filepath.Join(h.root, unit)) {
				return nil
			}
		case isUnit && unit == "":
			unit = group
		}
	}
	if unit != "" {
		groups = groups[:slices.Index(groups, unit)+1]
	}
	return groups
}

// isDelegated reports whether systemd has marked a group as left to the programs in it, which it does since version 251.
func isDelegated(dir string) bool {
	value := make([]byte, 1)
	n, err := unix.Getxattr(dir, "user.delegate", value)
	return err == nil && n == 1 && value[0] == '1'
}

// vacateTries is the number of times that FindBase moves processes, while more of them start.
const vacateTries = 3

// vacateGroup moves this process and those that it started from a group of v2 into its leaf. It reports whether there are no others.
func (h Hierarchy) vacateGroup(group string) bool {
	dir := filepath.Join(h.root, group)
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil || !h.isUsable(dir) || !h.offersLimits(dir) {
		return false
	}
	pids := strings.Fields(string(data))
	for _, pid := range pids {
		if !isOurs(pid) {
			return false
		}
	}
	for _, pid := range pids {
		if err := h.joinLeaf(dir, pid); err != nil && !errors.Is(err, unix.ESRCH) {
			return false
		}
	}
	return true
}

// offersLimits reports whether groups in dir, of v2, could have limits.
func (h Hierarchy) offersLimits(dir string) bool {
	file := filepath.Join(dir, "cgroup.controllers")
	return hasController(file, "memory") || hasController(file, "cpu") || hasController(file, "pids")
}

// isOurs reports whether pid is this process or one that it started, directly or not.
func isOurs(pid string) bool {
	for self := strconv.Itoa(os.Getpid()); pid != self; {
		data, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return false
		}
		stat := string(data)
		fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // state and parent: the name before may have spaces
		if len(fields) < 2 {
			return false
		}
		pid = fields[1]
	}
	return true
}

// joinLeaf moves a process into the leaf of the base dir.
func (h Hierarchy) joinLeaf(dir, pid string) (err error) {
	leaf := filepath.Join(dir, leafName)
	for range vacateTries { // Remove may remove it meanwhile
		if err = os.Mkdir(leaf, 0o755); err == nil || errors.Is(err, fs.ErrExist) {
			err = h.write(filepath.Join(leaf, "cgroup.procs"), pid)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

// Lack says what this user needs for groups with a controller that those in b lack, and how to get it.
func (h Hierarchy) Lack(b Base, controller string) string {
	ordinary := os.Geteuid() != 0
	manager := ordinary && h.v2 && hasUserManager()
	switch {
	case b.Path != "" && manager:
		return "the cgroup controller " + controller + ": run systemctl edit user@.service, add Delegate=cpu memory pids to [Service], and log in again"
	case b.Path != "":
		return "the cgroup controller " + controller + ", which is missing here"
	case manager:
		return "a writable cgroup: start Atoll by systemd-run --user --scope -p Delegate=yes atoll serve"
	case ordinary:
		return "a writable cgroup: run as root, or in a cgroup that you own"
	}
	return "a writable cgroup: mount /sys/fs/cgroup read-write here"
}

// hasUserManager reports whether a systemd of this user runs.
func hasUserManager() bool {
	return pathExists(fmt.Sprintf("/run/user/%d/systemd/private", os.Geteuid()))
}
