package router

import (
	"context"

	"github.com/seed46cd37a8/atoll/layer/session"
)

// The session layer around a router has the sessions of all members. A router without
// it forwards these calls to its default member.

// OpenSession implements session.Manager.
func (p *Provider) OpenSession(ctx context.Context, spec *session.Spec) (session.OpenResult, error) {
	first, err := p.members[0].openLeaf()
	if err != nil {
		return session.OpenResult{}, err
	}
	return session.Open(ctx, first, spec)
}

// Sessions implements session.Manager.
func (p *Provider) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	first, err := p.members[0].openLeaf()
	if err != nil {
		return nil, err
	}
	return session.List(ctx, first, project)
}

// CloseSession implements session.Manager.
func (p *Provider) CloseSession(ctx context.Context, project, key string) error {
	first, err := p.members[0].openLeaf()
	if err != nil {
		return err
	}
	return session.Close(ctx, first, project, key)
}

var _ session.Manager = (*Provider)(nil)
