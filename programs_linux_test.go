package atoll_test

import (
	"os"
	"syscall"
)

// maxResident returns the most memory, in bytes, that a process had at any time.
func maxResident(state *os.ProcessState) int64 {
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		return usage.Maxrss << 10
	}
	return 0
}
