package stack

import (
	"golang.org/x/sys/unix"
)

// machineMemory returns the size of this machine's memory in bytes, or 0 if it is unknown.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}
