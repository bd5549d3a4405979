package router

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Workspaces are what sandboxes of all members work on: a layer around a router
// keeps them. A router itself has those of its default member.

// Workspaces implements atoll.WorkspaceStore.
func (p *Provider) Workspaces(ctx context.Context, project string) ([]atoll.Workspace, error) {
	first, err := p.members[0].provider()
	if err != nil {
		return nil, err
	}
	return atoll.Workspaces(ctx, first, project)
}

// AddWorkspace implements atoll.WorkspaceStore.
func (p *Provider) AddWorkspace(ctx context.Context, spec *atoll.WorkspaceSpec, progress func(atoll.Progress)) (atoll.Workspace, error) {
	first, err := p.members[0].provider()
	if err != nil {
		return atoll.Workspace{}, err
	}
	return atoll.AddWorkspace(ctx, first, spec, progress)
}

// UpdateWorkspace implements atoll.WorkspaceStore.
func (p *Provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (atoll.Workspace, error) {
	first, err := p.members[0].provider()
	if err != nil {
		return atoll.Workspace{}, err
	}
	return atoll.UpdateWorkspace(ctx, first, project, name, progress)
}

// RemoveWorkspace implements atoll.WorkspaceStore.
func (p *Provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	first, err := p.members[0].provider()
	if err != nil {
		return err
	}
	return atoll.RemoveWorkspace(ctx, first, project, name)
}

var _ atoll.WorkspaceStore = (*Provider)(nil)
