package authz

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// Volumes implements atoll.VolumeStore.
func (p *provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	project, own, err := p.listScope(ctx, "volumes", project)
	if err != nil {
		return nil, err
	}
	all, err := atoll.Volumes(ctx, p.Provider, project)
	return filterOwned(all, func(v atoll.Volume) string { return v.Project }, own), err
}

// RemoveVolume implements atoll.VolumeStore.
func (p *provider) RemoveVolume(ctx context.Context, project, name string) error {
	project, err := p.checkProject(ctx, "remove volume", project, name)
	if err != nil {
		return err
	}
	return atoll.RemoveVolume(ctx, p.Provider, project, name)
}

// Workspaces implements workspace.Manager.
func (p *provider) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	project, own, err := p.listScope(ctx, "workspaces", project)
	if err != nil {
		return nil, err
	}
	all, err := workspace.List(ctx, p.Provider, project)
	return filterOwned(all, func(w workspace.Workspace) string { return w.Project }, own), err
}

// AddWorkspace implements workspace.Manager. It requires auth.RoleAdmin, because the server reads
// the source with its own permissions and credentials.
func (p *provider) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	const op = "add workspace"
	if _, err := p.checkProject(ctx, op, spec.Project, spec.Name); err != nil {
		return workspace.Workspace{}, err
	}
	if err := p.requireAdmin(ctx, op, spec.Name, "a source may be anything that the server can read"); err != nil {
		return workspace.Workspace{}, err
	}
	return workspace.Add(ctx, p.Provider, spec, progress)
}

// UpdateWorkspace implements workspace.Manager.
func (p *provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	project, err := p.checkProject(ctx, "update workspace", project, name)
	if err != nil {
		return workspace.Workspace{}, err
	}
	return workspace.Update(ctx, p.Provider, project, name, progress)
}

// RemoveWorkspace implements workspace.Manager.
func (p *provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	project, err := p.checkProject(ctx, "remove workspace", project, name)
	if err != nil {
		return err
	}
	return workspace.Remove(ctx, p.Provider, project, name)
}

// OpenSession implements session.Manager.
func (p *provider) OpenSession(ctx context.Context, spec *session.Spec) (session.OpenResult, error) {
	if _, ok := boundedAccount(ctx); !ok {
		return session.Open(ctx, p.Provider, spec)
	}
	const op = "open session"
	project, err := p.checkProject(ctx, op, spec.Project, spec.Scope.ID)
	if err != nil {
		return session.OpenResult{}, err
	}
	if err := spec.Validate(); err != nil { // the sandbox has no project of its own
		return session.OpenResult{}, err
	}
	box := spec.Sandbox
	box.Project = project
	made, err := p.checkSpec(ctx, op, &box)
	if err != nil {
		return session.OpenResult{}, err
	}
	c := *spec
	c.Project, c.Sandbox = project, *made
	c.Sandbox.Project = ""
	return session.Open(ctx, p.Provider, &c)
}

// Sessions implements session.Manager.
func (p *provider) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	project, own, err := p.listScope(ctx, "sessions", project)
	if err != nil {
		return nil, err
	}
	all, err := session.List(ctx, p.Provider, project)
	return filterOwned(all, func(s session.Session) string { return s.Project }, own), err
}

// CloseSession implements session.Manager.
func (p *provider) CloseSession(ctx context.Context, project, key string) error {
	project, err := p.checkProject(ctx, "close session", project, key)
	if err != nil {
		return err
	}
	return session.Close(ctx, p.Provider, project, key)
}

// All projects share the images of a server. A list of them would reveal what other projects use,
// and other projects would need to fetch a deleted image again.
const imagesShared = "images are shared by all projects"

// Images implements atoll.ImageStore.
func (p *provider) Images(ctx context.Context) ([]atoll.Image, error) {
	if err := p.requireAdmin(ctx, "images", "", imagesShared); err != nil {
		return nil, err
	}
	return atoll.Images(ctx, p.Provider)
}

// RemoveImage implements atoll.ImageStore.
func (p *provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	if err := p.requireAdmin(ctx, "remove image", ref, imagesShared); err != nil {
		return err
	}
	return atoll.RemoveImage(ctx, p.Provider, ref, force)
}

// PruneImages implements atoll.ImageStore.
func (p *provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	if err := p.requireAdmin(ctx, "prune images", "", imagesShared); err != nil {
		return atoll.Pruned{}, err
	}
	return atoll.PruneImages(ctx, p.Provider, opts)
}

// ResolveImage implements atoll.ImageResolver.
func (p *provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	if err := p.requireAdmin(ctx, "resolve image", ref, imagesShared); err != nil {
		return "", err
	}
	return atoll.ResolveImage(ctx, p.Provider, ref)
}

var (
	_ atoll.VolumeStore   = (*provider)(nil)
	_ workspace.Manager   = (*provider)(nil)
	_ session.Manager     = (*provider)(nil)
	_ atoll.ImageStore    = (*provider)(nil)
	_ atoll.ImageResolver = (*provider)(nil)
)
