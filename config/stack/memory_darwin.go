package stack

import "golang.org/x/sys/unix"

// machineMemory returns the size of this machine's memory in bytes, or 0 if it is unknown.
func machineMemory() uint64 {
	size, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return size
}

// availableMemory returns 0: how much memory is available is unknown.
func availableMemory() uint64 { return 0 }
