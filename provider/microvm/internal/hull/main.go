// Package hull is what sandboxes that are virtual machines have of their own, in the
// process that keeps one of them: the engine of package keeper over a machine with a guest
// in it. It is the only one who has to do with hypervisors; when it dies, so does the
// machine.
//
// Any binary that imports this package can serve as keeper: it takes over in init.
package hull

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/kept/keeper"
)

// Argv0 is the argv[0] of a keeper.
const Argv0 = "atoll-vm-keeper"

func init() {
	keeper.TakeOver(keeper.Kind{Argv0: Argv0, Isolation: atoll.IsolationVM, New: newEngine})
}
