//go:build linux

// Package plan has what the provider and its supervisors share: the provider's program need not
// link gVisor.
package plan

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

const (
	// SupervisorArgv0 is the argv[0] of a supervisor.
	SupervisorArgv0 = "atoll-keeper"
	// ProbeArgv0 is the argv[0] of a process that only tries what a supervisor needs: it exits
	// with 0, or prints the reason why it cannot.
	ProbeArgv0 = "atoll-probe"
)

// A Plan is the part of a job that is specific to gVisor.
type Plan struct {
	HostPaths []string `json:"host_paths,omitempty"` // paths that the host's file system shows in addition to its allow-list
	Upper     string   `json:"upper,omitempty"`      // tar of the upper layer to start from; "" for none

	Platform string `json:"platform"`
	Rootless bool   `json:"rootless,omitempty"`
	Debug    bool   `json:"debug,omitempty"` // gVisor's own logs into the sandbox's directory
}

// UpperName is the name of a file in the sandbox's directory: changes of the root file system, saved
// by a clean stop.
const UpperName = "upper.tar"

// EngineSteps are the names of the engine's steps of a start, in their order.
var EngineSteps = [...]string{"network", "root", "sentry", "upper layer", "data volume", "work directory"}

// Steps returns the names of the steps with which a supervisor starts a sandbox, in their order.
func Steps() []string {
	var engine []supervisor.Step
	for _, name := range EngineSteps {
		engine = append(engine, supervisor.Step{Name: name})
	}
	return supervisor.Steps(engine)
}

// CgroupLimits returns the limits of the cgroup of a sandbox. The sentry has no means to end a
// process when memory is used up, and the kernel would end the sentry. So the sandbox has a
// reserve, which it uses for the moment in which the supervisor ends a process. A system call of that
// process, such as a read into much memory, goes on until its end.
func CgroupLimits(r atoll.Resources) cgroup.Limits {
	l := cgroup.Limits{Memory: max(int64(r.Memory), 0), CPUs: max(r.CPUs, 0)}
	if l.Memory > 0 {
		l.Reserve = min(max(l.Memory/2, 128<<20), 1<<30)
	}
	return l
}
