package router

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// The workspace layer around a router has the workspaces of all members. A router
// without it forwards these calls to its default member.

// Workspaces implements workspace.Manager.
func (p *Provider) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	first, err := p.members[0].openLeaf()
	if err != nil {
		return nil, err
	}
	return workspace.List(ctx, first, project)
}

// AddWorkspace implements workspace.Manager.
func (p *Provider) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	first, err := p.members[0].openLeaf()
	if err != nil {
		return workspace.Workspace{}, err
	}
	return workspace.Add(ctx, first, spec, progress)
}

// UpdateWorkspace implements workspace.Manager.
func (p *Provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	first, err := p.members[0].openLeaf()
	if err != nil {
		return workspace.Workspace{}, err
	}
	return workspace.Update(ctx, first, project, name, progress)
}

// RemoveWorkspace implements workspace.Manager.
func (p *Provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	first, err := p.members[0].openLeaf()
	if err != nil {
		return err
	}
	return workspace.Remove(ctx, first, project, name)
}

var _ workspace.Manager = (*Provider)(nil)
