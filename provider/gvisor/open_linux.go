package gvisor

import (
	"context"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// openerRank places gVisor behind package provider/auto, and before Docker.
const openerRank = 30

func init() { atoll.RegisterOpener("gvisor", openerRank, atoll.ProbedOpener(openDefault)) }

// openDefault opens the provider with the directory of the command line.
func openDefault(context.Context) (atoll.Provider, error) {
	state, err := fsutil.StateHome()
	if err != nil {
		return nil, err
	}
	p, err := New(Options{Dir: filepath.Join(state, "atoll", "gvisor"), BuildHelper: true})
	if err != nil {
		return nil, err
	}
	return p, nil
}
