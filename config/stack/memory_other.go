//go:build !linux && !darwin

package stack

// machineMemory returns 0: the size of this machine's memory is unknown.
func machineMemory() uint64 { return 0 }
