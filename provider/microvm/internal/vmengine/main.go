// Package vmengine runs a sandbox as a virtual machine: it is the supervisor.Engine over a machine
// with a guest in it. Only this package talks to hypervisors. When its process ends, so does the
// machine.
//
// A binary that imports this package can serve as supervisor: it takes over in init.
package vmengine

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// Argv0 is the argv[0] of a supervisor.
const Argv0 = "atoll-vm-keeper"

func init() {
	supervisor.TakeOver(supervisor.Kind{Argv0: Argv0, Isolation: atoll.IsolationVM, New: newEngine})
}
