// Package cgroup limits and measures the processes of one sandbox, on cgroup
// v1 and v2. On systems other than Linux there is no Base.
//
// Moving a process between cgroups costs some 10 ms on an idle kernel (it
// waits for a grace period), so on v2 a process should be cloned into its group,
// and on v1 moved while it starts up.
package cgroup

// Root is the mount point of the machine's cgroups.
const Root = "/sys/fs/cgroup"

// A Base is a group below which a process makes groups, and says what they can do.
type Base struct {
	Path                           string // from the root of the hierarchy; "" if there is no such group
	Memory, CPU, Processes, Freeze bool   // what can be limited, and whether processes can be frozen
}

// Limits are the limits of a group; 0 means none.
type Limits struct {
	Memory int64 // bytes
	// Reserve is the memory, in bytes, on top of Memory that a group may use for a moment, while
	// the program that watches it with WatchMemory ends processes.
	Reserve int64
	CPUs    float64 // number of CPUs
}
