//go:build linux

// Package sentry implements the engine of package supervisor over gVisor's sentry, in the
// process that owns one sandbox. Besides package runsc, it is the
// only caller of gVisor's packages. It holds the sandbox's
// processes and their output, terminals and network; when it dies, the kernel kills
// the sentry and the gofer with it.
//
// Every binary that imports this package can serve as supervisor, and as the guest inside
// a sandbox: it takes over in init, like package runsc.
package sentry

import (
	"os"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

func init() {
	supervisor.TakeOver(supervisor.Kind{Argv0: plan.SupervisorArgv0, Isolation: atoll.IsolationKernel, New: newEngine})
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case plan.ProbeArgv0:
		os.Exit(runProbe())
	case GuestArgv0:
		os.Exit(runGuest(os.Args[1:]))
	}
}
