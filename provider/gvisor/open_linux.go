package gvisor

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// openerRank places gVisor behind package provider/auto, and before Docker.
const openerRank = 30

func init() { atoll.RegisterOpener("gvisor", openerRank, openDefault) }

// openDefault opens the provider with the directory of the command line, for atoll.Open.
func openDefault(ctx context.Context) (atoll.Provider, error) {
	state, err := fsutil.StateHome()
	if err != nil {
		return nil, err
	}
	p, err := New(Options{Dir: filepath.Join(state, "atoll", "gvisor"), BuildHelper: true})
	if err != nil {
		return nil, err
	}
	probe := p.Probe(ctx)
	if probe.OK {
		return p, nil
	}
	if err := errors.Join(ctx.Err(), p.Close()); err != nil {
		return nil, err
	}
	return nil, atoll.Errorf("open", "", atoll.ErrUnsupported, "%s (%s)", probe.Reason, probe.Fix)
}
