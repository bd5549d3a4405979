package authz

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Volumes implements atoll.VolumeStore.
func (p *provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	project, own, err := p.listed(ctx, "volumes", project)
	if err != nil {
		return nil, err
	}
	all, err := atoll.Volumes(ctx, p.Provider, project)
	return only(all, func(v atoll.Volume) string { return v.Project }, own), err
}

// RemoveVolume implements atoll.VolumeStore.
func (p *provider) RemoveVolume(ctx context.Context, project, name string) error {
	project, err := p.project(ctx, "remove volume", project, name)
	if err != nil {
		return err
	}
	return atoll.RemoveVolume(ctx, p.Provider, project, name)
}

// Workspaces implements atoll.WorkspaceStore.
func (p *provider) Workspaces(ctx context.Context, project string) ([]atoll.Workspace, error) {
	project, own, err := p.listed(ctx, "workspaces", project)
	if err != nil {
		return nil, err
	}
	all, err := atoll.Workspaces(ctx, p.Provider, project)
	return only(all, func(w atoll.Workspace) string { return w.Project }, own), err
}

// AddWorkspace implements atoll.WorkspaceStore. It is for admins: the server reads
// the source as itself, a directory of its machine or a repository that it has the
// credentials for.
func (p *provider) AddWorkspace(ctx context.Context, spec *atoll.WorkspaceSpec, progress func(atoll.Progress)) (atoll.Workspace, error) {
	const op = "add workspace"
	if _, err := p.project(ctx, op, spec.Project, spec.Name); err != nil {
		return atoll.Workspace{}, err
	}
	if err := p.forAdmins(ctx, op, spec.Name, "what is cloned is what the server may read"); err != nil {
		return atoll.Workspace{}, err
	}
	return atoll.AddWorkspace(ctx, p.Provider, spec, progress)
}

// UpdateWorkspace implements atoll.WorkspaceStore.
func (p *provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (atoll.Workspace, error) {
	project, err := p.project(ctx, "update workspace", project, name)
	if err != nil {
		return atoll.Workspace{}, err
	}
	return atoll.UpdateWorkspace(ctx, p.Provider, project, name, progress)
}

// RemoveWorkspace implements atoll.WorkspaceStore.
func (p *provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	project, err := p.project(ctx, "remove workspace", project, name)
	if err != nil {
		return err
	}
	return atoll.RemoveWorkspace(ctx, p.Provider, project, name)
}

// OpenSession implements atoll.SessionStore.
func (p *provider) OpenSession(ctx context.Context, spec *atoll.SessionSpec) (atoll.OpenedSession, error) {
	if _, ok := bound(ctx); !ok {
		return atoll.OpenSession(ctx, p.Provider, spec)
	}
	const op = "open session"
	project, err := p.project(ctx, op, spec.Project, spec.Scope.ID)
	if err != nil {
		return atoll.OpenedSession{}, err
	}
	if err := spec.Validate(); err != nil { // the sandbox names no project of its own
		return atoll.OpenedSession{}, err
	}
	box := spec.Sandbox
	box.Project = project
	made, err := p.bounded(ctx, op, &box)
	if err != nil {
		return atoll.OpenedSession{}, err
	}
	c := *spec
	c.Project, c.Sandbox = project, *made
	c.Sandbox.Project = ""
	return atoll.OpenSession(ctx, p.Provider, &c)
}

// Sessions implements atoll.SessionStore.
func (p *provider) Sessions(ctx context.Context, project string) ([]atoll.Session, error) {
	project, own, err := p.listed(ctx, "sessions", project)
	if err != nil {
		return nil, err
	}
	all, err := atoll.Sessions(ctx, p.Provider, project)
	return only(all, func(s atoll.Session) string { return s.Project }, own), err
}

// CloseSession implements atoll.SessionStore.
func (p *provider) CloseSession(ctx context.Context, project, key string) error {
	project, err := p.project(ctx, "close session", project, key)
	if err != nil {
		return err
	}
	return atoll.CloseSession(ctx, p.Provider, project, key)
}

// The images that a server has fetched are for all of its projects: which there are
// tells what others use, and one that is deleted they have to fetch again.
const imagesOfAll = "the images are those of all projects"

// Images implements atoll.ImageStore.
func (p *provider) Images(ctx context.Context) ([]atoll.Image, error) {
	if err := p.forAdmins(ctx, "images", "", imagesOfAll); err != nil {
		return nil, err
	}
	return atoll.Images(ctx, p.Provider)
}

// RemoveImage implements atoll.ImageStore.
func (p *provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	if err := p.forAdmins(ctx, "remove image", ref, imagesOfAll); err != nil {
		return err
	}
	return atoll.RemoveImage(ctx, p.Provider, ref, force)
}

// PruneImages implements atoll.ImageStore.
func (p *provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	if err := p.forAdmins(ctx, "prune images", "", imagesOfAll); err != nil {
		return atoll.Pruned{}, err
	}
	return atoll.PruneImages(ctx, p.Provider, opts)
}

// ResolveImage implements atoll.ImageResolver.
func (p *provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	if err := p.forAdmins(ctx, "resolve image", ref, imagesOfAll); err != nil {
		return "", err
	}
	return atoll.ResolveImage(ctx, p.Provider, ref)
}

var (
	_ atoll.VolumeStore    = (*provider)(nil)
	_ atoll.WorkspaceStore = (*provider)(nil)
	_ atoll.SessionStore   = (*provider)(nil)
	_ atoll.ImageStore     = (*provider)(nil)
	_ atoll.ImageResolver  = (*provider)(nil)
)
