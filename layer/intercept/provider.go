package intercept

import (
	"context"
	"iter"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

type provider struct {
	atoll.ProviderLayer
	layer
}

// wrapSandbox returns sb with its calls intercepted.
func (l layer) wrapSandbox(sb atoll.Sandbox) atoll.Sandbox {
	if l.depth < Sandboxes {
		return sb
	}
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, l}
}

// Create implements atoll.Provider.
func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	c := &Call{Op: "Provider.Create", Sandbox: spec.ID, Project: spec.Project, Name: spec.Name, Arg: spec}
	sb, err := invokeFunc(ctx, p.f, c, func(ctx context.Context) (atoll.Sandbox, error) {
		sb, err := p.Provider.Create(ctx, spec)
		if err == nil {
			c.Sandbox = sb.ID()
		}
		return sb, err
	})
	if err != nil {
		return nil, err
	}
	return p.wrapSandbox(sb), nil
}

// Get implements atoll.Provider.
func (p *provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := invokeFunc(ctx, p.f, &Call{Op: "Provider.Get", Sandbox: id, Name: id}, func(ctx context.Context) (atoll.Sandbox, error) {
		return p.Provider.Get(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	return p.wrapSandbox(sb), nil
}

// List implements atoll.Provider.
func (p *provider) List(ctx context.Context, filter atoll.Filter) ([]atoll.Status, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.List", Project: filter.Project, Arg: filter}, func(ctx context.Context) ([]atoll.Status, error) {
		return p.Provider.List(ctx, filter)
	})
}

// Watch implements atoll.Provider.
func (p *provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return streamFunc(ctx, p.f, &Call{Op: "Provider.Watch"}, p.Provider.Watch)
}

// Resolve implements atoll.Resolver.
func (p *provider) Resolve(ctx context.Context, project, name string) (string, error) {
	c := &Call{Op: "Provider.Resolve", Project: project, Name: name}
	return invokeFunc(ctx, p.f, c, func(ctx context.Context) (string, error) {
		id, err := atoll.ResolveID(ctx, p.Provider, project, name)
		c.Sandbox = id
		return id, err
	})
}

// Members implements atoll.Combiner.
func (p *provider) Members(ctx context.Context) ([]atoll.Member, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Members"}, func(ctx context.Context) ([]atoll.Member, error) {
		return atoll.Members(ctx, p.Provider)
	})
}

// Probe implements atoll.Prober. An error of the Func is the reason of a Probe that isn't OK.
func (p *provider) Probe(ctx context.Context) atoll.Probe {
	probe, err := invokeFunc(ctx, p.f, &Call{Op: "Provider.Probe"}, func(ctx context.Context) (atoll.Probe, error) {
		return atoll.ProbeProvider(ctx, p.Provider), nil
	})
	if err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	return probe
}

// Prepare implements atoll.Preparer.
func (p *provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	return p.f(ctx, &Call{Op: "Provider.Prepare", Project: spec.Project, Arg: spec}, func(ctx context.Context) error {
		return atoll.Prepare(ctx, p.Provider, spec, progress)
	})
}

// Projects implements atoll.ProjectLister.
func (p *provider) Projects(ctx context.Context) ([]atoll.Project, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Projects"}, func(ctx context.Context) ([]atoll.Project, error) {
		return atoll.Projects(ctx, p.Provider)
	})
}

// RemoveProject implements atoll.ProjectRemover.
func (p *provider) RemoveProject(ctx context.Context, project string) error {
	return p.f(ctx, &Call{Op: "Provider.RemoveProject", Project: project}, func(ctx context.Context) error {
		return atoll.RemoveProject(ctx, p.Provider, project)
	})
}

// Volumes implements atoll.VolumeStore.
func (p *provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Volumes", Project: project}, func(ctx context.Context) ([]atoll.Volume, error) {
		return atoll.Volumes(ctx, p.Provider, project)
	})
}

// RemoveVolume implements atoll.VolumeStore.
func (p *provider) RemoveVolume(ctx context.Context, project, name string) error {
	return p.f(ctx, &Call{Op: "Provider.RemoveVolume", Project: project, Name: name}, func(ctx context.Context) error {
		return atoll.RemoveVolume(ctx, p.Provider, project, name)
	})
}

// Images implements atoll.ImageStore.
func (p *provider) Images(ctx context.Context) ([]atoll.Image, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Images"}, func(ctx context.Context) ([]atoll.Image, error) {
		return atoll.Images(ctx, p.Provider)
	})
}

// RemoveImage implements atoll.ImageStore.
func (p *provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	return p.f(ctx, &Call{Op: "Provider.RemoveImage", Name: ref, Arg: force}, func(ctx context.Context) error {
		return atoll.RemoveImage(ctx, p.Provider, ref, force)
	})
}

// PruneImages implements atoll.ImageStore.
func (p *provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.PruneImages", Arg: opts}, func(ctx context.Context) (atoll.Pruned, error) {
		return atoll.PruneImages(ctx, p.Provider, opts)
	})
}

// ResolveImage implements atoll.ImageResolver.
func (p *provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.ResolveImage", Name: ref}, func(ctx context.Context) (string, error) {
		return atoll.ResolveImage(ctx, p.Provider, ref)
	})
}

// Secret implements atoll.SecretKeeper.
func (p *provider) Secret(ctx context.Context, id string) (string, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Secret", Sandbox: id}, func(ctx context.Context) (string, error) {
		return atoll.SecretOf(ctx, p.Provider, id)
	})
}

// Reserve implements atoll.Reserver.
func (p *provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Reserve", Project: spec.Project, Arg: spec}, func(ctx context.Context) (string, error) {
		return atoll.Reserve(ctx, p.Provider, spec)
	})
}

// Snapshots implements atoll.SnapshotStore.
func (p *provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Snapshots"}, func(ctx context.Context) ([]atoll.Snapshot, error) {
		return atoll.Snapshots(ctx, p.Provider)
	})
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *provider) RemoveSnapshot(ctx context.Context, id string) error {
	return p.f(ctx, &Call{Op: "Provider.RemoveSnapshot", Name: id}, func(ctx context.Context) error {
		return atoll.RemoveSnapshot(ctx, p.Provider, id)
	})
}

// Workspaces implements workspace.Manager.
func (p *provider) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Workspaces", Project: project}, func(ctx context.Context) ([]workspace.Workspace, error) {
		return workspace.List(ctx, p.Provider, project)
	})
}

// AddWorkspace implements workspace.Manager.
func (p *provider) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.AddWorkspace", Project: spec.Project, Name: spec.Name, Arg: spec}, func(ctx context.Context) (workspace.Workspace, error) {
		return workspace.Add(ctx, p.Provider, spec, progress)
	})
}

// UpdateWorkspace implements workspace.Manager.
func (p *provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.UpdateWorkspace", Project: project, Name: name}, func(ctx context.Context) (workspace.Workspace, error) {
		return workspace.Update(ctx, p.Provider, project, name, progress)
	})
}

// RemoveWorkspace implements workspace.Manager.
func (p *provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	return p.f(ctx, &Call{Op: "Provider.RemoveWorkspace", Project: project, Name: name}, func(ctx context.Context) error {
		return workspace.Remove(ctx, p.Provider, project, name)
	})
}

// OpenSession implements session.Manager.
func (p *provider) OpenSession(ctx context.Context, spec *session.Spec) (session.OpenResult, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.OpenSession", Project: spec.Project, Name: spec.Scope.Key(), Arg: spec}, func(ctx context.Context) (session.OpenResult, error) {
		return session.Open(ctx, p.Provider, spec)
	})
}

// Sessions implements session.Manager.
func (p *provider) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Sessions", Project: project}, func(ctx context.Context) ([]session.Session, error) {
		return session.List(ctx, p.Provider, project)
	})
}

// CloseSession implements session.Manager.
func (p *provider) CloseSession(ctx context.Context, project, key string) error {
	return p.f(ctx, &Call{Op: "Provider.CloseSession", Project: project, Name: key}, func(ctx context.Context) error {
		return session.Close(ctx, p.Provider, project, key)
	})
}

// Reconcile implements registry.Reconciler.
func (p *provider) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Reconcile", Arg: opts}, func(ctx context.Context) (registry.Reconciliation, error) {
		return registry.Reconcile(ctx, p.Provider, opts)
	})
}

// Pools implements pool.Reporter.
func (p *provider) Pools(ctx context.Context) (pool.Report, error) {
	return invokeFunc(ctx, p.f, &Call{Op: "Provider.Pools"}, func(ctx context.Context) (pool.Report, error) {
		return pool.ReportOf(ctx, p.Provider)
	})
}

var (
	_ atoll.Resolver       = (*provider)(nil)
	_ atoll.Combiner       = (*provider)(nil)
	_ atoll.Prober         = (*provider)(nil)
	_ atoll.Preparer       = (*provider)(nil)
	_ atoll.ProjectRemover = (*provider)(nil)
	_ atoll.ProjectLister  = (*provider)(nil)
	_ atoll.VolumeStore    = (*provider)(nil)
	_ atoll.ImageStore     = (*provider)(nil)
	_ atoll.ImageResolver  = (*provider)(nil)
	_ atoll.SnapshotStore  = (*provider)(nil)
	_ atoll.SecretKeeper   = (*provider)(nil)
	_ atoll.Reserver       = (*provider)(nil)
	_ workspace.Manager    = (*provider)(nil)
	_ session.Manager      = (*provider)(nil)
	_ registry.Reconciler  = (*provider)(nil)
	_ pool.Reporter        = (*provider)(nil)
)
