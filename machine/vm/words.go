package vm

import (
	"slices"
	"strings"
)

// What a driver tells a guest of ours on its kernel's command line, where the hypervisor
// lacks what others have.
const (
	// WordRestart says that a machine ends when it restarts, and hangs when it is powered
	// off.
	WordRestart = "atoll.off=restart"
	wordDisks   = "atoll.disks="
)

// ModuleList is the file of an initrd that names the modules which a guest of ours has
// to load: one path a line, each after those that it depends on.
const ModuleList = "/lib/modules/atoll.load"

// maxNamed is how many disks have a letter.
const maxNamed = 26

// WordDisks says which disk is which, where the guest cannot see their ids: by their
// order. It is "" where there are none.
func WordDisks(disks []Disk) string {
	if len(disks) == 0 {
		return ""
	}
	ids := make([]string, len(disks))
	for i, d := range disks {
		ids[i] = d.ID
	}
	return wordDisks + strings.Join(ids, ",")
}

// NamedDisk is the device of a disk, as the kernel's command line says by WordDisks; ""
// when it does not.
func NamedDisk(cmdline, id string) string {
	for word := range strings.FieldsSeq(cmdline) {
		ids, ok := strings.CutPrefix(word, wordDisks)
		if !ok {
			continue
		}
		if i := slices.Index(strings.Split(ids, ","), id); i >= 0 && i < maxNamed {
			return "/dev/vd" + string(rune('a'+i))
		}
	}
	return ""
}

// Restarts reports whether the kernel's command line has WordRestart.
func Restarts(cmdline string) bool {
	return slices.Contains(strings.Fields(cmdline), WordRestart)
}
