package router

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// Pools implements pool.Reporter. It skips members that are not open.
func (p *Provider) Pools(ctx context.Context) (pool.Report, error) {
	var sum pool.Report
	for _, m := range p.members {
		m.mu.Lock()
		leaf := m.leaf
		m.mu.Unlock()
		if leaf == nil {
			continue
		}
		report, err := pool.ReportOf(ctx, leaf)
		if err != nil {
			return pool.Report{}, err
		}
		sum = sum.Add(report)
	}
	return sum, nil
}

// Reserve implements atoll.Reserver. It asks the member that would create the
// sandbox.
func (p *Provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	m, err := p.chooseMember(ctx, spec)
	if err != nil {
		return "", err
	}
	leaf, err := m.openLeaf()
	if err != nil {
		return "", err
	}
	s := *spec
	s.Provider = m.name
	return atoll.Reserve(ctx, leaf, &s)
}

var (
	_ pool.Reporter  = (*Provider)(nil)
	_ atoll.Reserver = (*Provider)(nil)
)
