package docker

import (
	"context"
	"errors"

	"github.com/seed46cd37a8/atoll"
)

// openerRank places Docker behind gVisor, which isolates better.
const openerRank = 40

func init() { atoll.RegisterOpener("docker", openerRank, openDefault) }

// openDefault opens the provider of the engine that the docker program would use, for atoll.Open.
func openDefault(ctx context.Context) (atoll.Provider, error) {
	p, err := New(Options{})
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
