package router

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Pools implements atoll.PoolKeeper. A member that is not open keeps none.
func (p *Provider) Pools(ctx context.Context) (atoll.PoolReport, error) {
	var sum atoll.PoolReport
	for _, m := range p.members {
		m.mu.Lock()
		leaf := m.leaf
		m.mu.Unlock()
		if leaf == nil {
			continue
		}
		report, err := atoll.Pools(ctx, leaf)
		if err != nil {
			return atoll.PoolReport{}, err
		}
		sum = sum.Add(report)
	}
	return sum, nil
}

var _ atoll.PoolKeeper = (*Provider)(nil)
