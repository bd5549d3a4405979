// Package cgroup limits and measures the processes of one sandbox, on cgroup
// v1 and v2. Systems other than Linux have none, which Can says there.
//
// Moving a process between cgroups costs some 10 ms on an idle kernel (it
// waits for a grace period), so on v2 the process is cloned into its group,
// and on v1 it is moved while it starts up.
package cgroup

// Root is where the machine's cgroups are mounted.
const Root = "/sys/fs/cgroup"

// Limits of a group; 0 means none.
type Limits struct {
	Memory int64   // bytes
	CPUs   float64 // of one CPU's time each
}
