package docker

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// openerRank places Docker behind gVisor, which isolates better.
const openerRank = 40

func init() {
	atoll.RegisterOpener("docker", openerRank, atoll.ProbedOpener(func(context.Context) (atoll.Provider, error) {
		p, err := New(Options{})
		if err != nil {
			return nil, err
		}
		return p, nil
	}))
}
