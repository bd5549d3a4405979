package router

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Sessions have sandboxes of all members: a layer around a router keeps them. A
// router itself has those of its default member.

// OpenSession implements atoll.SessionStore.
func (p *Provider) OpenSession(ctx context.Context, spec *atoll.SessionSpec) (atoll.OpenedSession, error) {
	first, err := p.members[0].provider()
	if err != nil {
		return atoll.OpenedSession{}, err
	}
	return atoll.OpenSession(ctx, first, spec)
}

// Sessions implements atoll.SessionStore.
func (p *Provider) Sessions(ctx context.Context, project string) ([]atoll.Session, error) {
	first, err := p.members[0].provider()
	if err != nil {
		return nil, err
	}
	return atoll.Sessions(ctx, first, project)
}

// CloseSession implements atoll.SessionStore.
func (p *Provider) CloseSession(ctx context.Context, project, key string) error {
	first, err := p.members[0].provider()
	if err != nil {
		return err
	}
	return atoll.CloseSession(ctx, first, project, key)
}

var _ atoll.SessionStore = (*Provider)(nil)
