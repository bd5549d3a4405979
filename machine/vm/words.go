package vm

import (
	"slices"
	"strings"
)

// Words that a driver puts on the kernel's command line for an Atoll guest, if the hypervisor lacks
// what others have.
const (
	// WordRestart tells the guest that the machine ends on a restart, and hangs on a power-off.
	WordRestart = "atoll.off=restart"
	wordDisks   = "atoll.disks="
)

// ModuleList is the file of an initrd that names the modules for an Atoll guest to load: one path a
// line, each after its dependencies.
const ModuleList = "/lib/modules/atoll.load"

// maxNamed is the number of disks with a one-letter device name.
const maxNamed = 26

// WordDisks returns the word that lists the disks' ids by their order, for guests that cannot see
// the ids. It returns "" without disks.
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

// NamedDisk returns the device of a disk, as WordDisks on the kernel's command line names it; "" if
// it does not.
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
