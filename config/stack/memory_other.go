//go:build !linux && !darwin

package stack

// machineMemory returns 0: the size of this machine's memory is unknown.
func machineMemory() uint64 { return 0 }

// availableMemory returns 0: how much memory is available is unknown.
func availableMemory() uint64 { return 0 }
