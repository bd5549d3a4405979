//go:build linux

// Package plan has what the provider and its supervisors share.
package plan

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

const (
	// SupervisorArgv0 is the argv[0] of a supervisor.
	SupervisorArgv0 = "atoll-native-keeper"
	// ProbeArgv0 is the argv[0] of a process that is started like a supervisor and starts a sandbox without files: it exits with
	// 0, or prints the reason why it cannot.
	ProbeArgv0 = "atoll-native-probe"
)

// A Plan is the part of a job that is specific to this provider.
type Plan struct {
	HostPaths []string `json:"host_paths,omitempty"` // paths that the host's file system shows in addition to its allow-list
	Nested    bool     `json:"nested,omitempty"`     // programs may make namespaces and mounts
	Halt      string   `json:"halt,omitempty"`       // the name of the step before which a test halts the supervisor
}

// EngineSteps are the names of the engine's steps of a start, in their order.
var EngineSteps = [...]string{"user namespace", "network", "root", "mounts", "first process", "data volume", "work directory"}

// Steps returns the names of the steps with which a supervisor starts a sandbox, in their order.
func Steps() []string {
	var engine []supervisor.Step
	for _, name := range EngineSteps {
		engine = append(engine, supervisor.Step{Name: name})
	}
	return supervisor.Steps(engine)
}

// CgroupLimits returns the limits of the cgroup of a sandbox.
func CgroupLimits(r atoll.Resources) cgroup.Limits {
	return cgroup.Limits{Memory: max(int64(r.Memory), 0), CPUs: max(r.CPUs, 0)}
}
