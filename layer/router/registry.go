package router

import (
	"context"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
)

// ResolveImage implements atoll.ImageResolver, with the default member.
func (p *Provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	leaf, err := p.members[0].openLeaf()
	if err != nil {
		return "", err
	}
	return atoll.ResolveImage(ctx, leaf, ref)
}

// Secret implements atoll.SecretKeeper.
func (p *Provider) Secret(ctx context.Context, id string) (string, error) {
	first, err := p.members[0].openLeaf()
	if err != nil {
		return "", err
	}
	sb, err := p.Get(ctx, id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		if _, why := atoll.SecretOf(ctx, first, id); atoll.KindOf(why) == atoll.ErrUnsupported {
			err = why
		}
	}
	if err != nil {
		return "", err
	}
	m := p.recallMember(sb.ID())
	if m == nil {
		return atoll.SecretOf(ctx, first, sb.ID())
	}
	leaf, err := m.openLeaf()
	if err != nil {
		return "", err
	}
	return atoll.SecretOf(ctx, leaf, sb.ID())
}

// Reconcile implements registry.Reconciler. It reconciles each available member,
// and fails if all fail. It does not touch the sandboxes of an unavailable member.
func (p *Provider) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	lists := askMembers(ctx, p.members, func(ctx context.Context, leaf atoll.Provider) ([]atoll.Status, error) {
		return leaf.List(ctx, atoll.Filter{})
	})
	answers := make([]memberAnswer[[]registry.Finding], len(lists))
	healthy := make([]int, len(lists))
	var all sync.WaitGroup
	for i, t := range lists {
		a := &answers[i]
		a.m, a.err = t.m, t.err
		if t.err != nil {
			continue
		}
		all.Go(func() {
			leaf, err := t.m.openLeaf()
			var sum registry.Reconciliation
			if err == nil {
				sum, err = registry.Reconcile(ctx, leaf, opts)
			}
			a.val, a.err, healthy[i] = sum.Findings, err, sum.Healthy
		})
	}
	all.Wait()
	findings, err := joinAnswers(ctx, answers)
	sum := registry.Reconciliation{Findings: findings}
	for i, a := range answers {
		sum.Healthy += healthy[i]
		if a.err != nil && lists[i].err == nil && !isMissing(a.err) {
			p.log.WarnContext(ctx, "reconcile", "provider", a.m.name, "err", a.err)
		}
	}
	if sum.Findings == nil {
		sum.Findings = []registry.Finding{}
	}
	return sum, err
}

var (
	_ atoll.ImageResolver = (*Provider)(nil)
	_ atoll.SecretKeeper  = (*Provider)(nil)
	_ registry.Reconciler = (*Provider)(nil)
)
