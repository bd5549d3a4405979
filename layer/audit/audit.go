package audit

import (
	"context"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// noted are the calls that the layer notes.
var noted = map[string]bool{
	"create": true, "open session": true, "close session": true, "remove project": true, "remove volume": true, "add workspace": true,
	"update workspace": true, "remove workspace": true, "remove image": true, "prune images": true, "remove snapshot": true, "reconcile": true, "secret": true,
}

type provider struct {
	atoll.ProviderLayer
	log *Log

	mu       sync.Mutex
	projects map[string]string // of sandboxes, by id
}

// New returns a layer around p, which closes with it; the log stays the caller's.
func New(p atoll.Provider, log *Log) atoll.Provider {
	return &provider{ProviderLayer: atoll.ProviderLayer{Provider: p}, log: log, projects: map[string]string{}}
}

// Info implements atoll.Provider.
func (p *provider) Info() atoll.Info { return p.Provider.Info() }

// note writes down a call that is about no sandbox.
func (p *provider) note(ctx context.Context, op, project, target string, err error) {
	p.log.Note(ctx, outcome(store.AuditEvent{Op: op, Project: project, Target: target}, err), true)
}

// mostKnown is of how many sandboxes the project is remembered.
const mostKnown = 10_000

func (p *provider) know(id, project string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.projects) >= mostKnown {
		clear(p.projects)
	}
	p.projects[id] = project
}

// projectOf is that of a sandbox, which is asked for it once; "" if it does not say.
func (p *provider) projectOf(ctx context.Context, sb atoll.Sandbox) string {
	p.mu.Lock()
	project, ok := p.projects[sb.ID()]
	p.mu.Unlock()
	if ok {
		return project
	}
	st, err := sb.Status(ctx)
	if err != nil {
		return ""
	}
	p.know(sb.ID(), st.Spec.Project)
	return st.Spec.Project
}

// Create implements atoll.Provider.
func (p *provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	e := store.AuditEvent{Op: "create", Project: spec.Project, Target: spec.Name, Command: spec.Cmd}
	if err == nil {
		p.forget(sb.ID())
		e.Sandbox, e.Project = sb.ID(), p.projectOf(ctx, sb)
	}
	p.log.Note(ctx, outcome(e, err), true)
	if err != nil {
		return nil, err
	}
	return p.wrap(sb), nil
}

func (p *provider) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.projects, id)
}

// Get implements atoll.Provider.
func (p *provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return p.wrap(sb), nil
}

func (p *provider) wrap(sb atoll.Sandbox) atoll.Sandbox {
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, p}
}

// OpenSession implements session.Manager.
func (p *provider) OpenSession(ctx context.Context, spec *session.Spec) (session.Opened, error) {
	o, err := session.Open(ctx, p.Provider, spec)
	if err == nil && o.Opening == session.OpeningFound { // nothing was done
		return o, nil
	}
	e := store.AuditEvent{Op: "open session", Project: spec.Project, Target: spec.Scope.Key()}
	if err == nil {
		e.Project, e.Sandbox, e.Target = o.Project, o.Sandbox, o.Key+" ("+string(o.Opening)+")"
	}
	p.log.Note(ctx, outcome(e, err), true)
	return o, err
}

// CloseSession implements session.Manager.
func (p *provider) CloseSession(ctx context.Context, project, key string) error {
	err := session.Close(ctx, p.Provider, project, key)
	if atoll.KindOf(err) != atoll.ErrNotExist { // as it mostly is, of scopes that end
		p.note(ctx, "close session", project, key, err)
	}
	return err
}

// RemoveProject implements atoll.ProjectRemover.
func (p *provider) RemoveProject(ctx context.Context, project string) error {
	err := atoll.RemoveProject(ctx, p.Provider, project)
	p.note(ctx, "remove project", project, "", err)
	return err
}

// RemoveVolume implements atoll.VolumeStore.
func (p *provider) RemoveVolume(ctx context.Context, project, name string) error {
	err := atoll.RemoveVolume(ctx, p.Provider, project, name)
	p.note(ctx, "remove volume", project, name, err)
	return err
}

// AddWorkspace implements workspace.Manager.
func (p *provider) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	w, err := workspace.Add(ctx, p.Provider, spec, progress)
	p.note(ctx, "add workspace", spec.Project, spec.Name, err)
	return w, err
}

// UpdateWorkspace implements workspace.Manager.
func (p *provider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	w, err := workspace.Update(ctx, p.Provider, project, name, progress)
	p.note(ctx, "update workspace", project, name, err)
	return w, err
}

// RemoveWorkspace implements workspace.Manager.
func (p *provider) RemoveWorkspace(ctx context.Context, project, name string) error {
	err := workspace.Remove(ctx, p.Provider, project, name)
	p.note(ctx, "remove workspace", project, name, err)
	return err
}

// RemoveImage implements atoll.ImageStore.
func (p *provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	err := atoll.RemoveImage(ctx, p.Provider, ref, force)
	p.note(ctx, "remove image", "", ref, err)
	return err
}

// PruneImages implements atoll.ImageStore.
func (p *provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	pruned, err := atoll.PruneImages(ctx, p.Provider, opts)
	p.note(ctx, "prune images", "", "", err)
	return pruned, err
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *provider) RemoveSnapshot(ctx context.Context, id string) error {
	err := atoll.RemoveSnapshot(ctx, p.Provider, id)
	p.note(ctx, "remove snapshot", "", id, err)
	return err
}

// Reconcile implements registry.Reconciler.
func (p *provider) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	sum, err := registry.Reconcile(ctx, p.Provider, opts)
	if auth.OriginFrom(ctx) != (auth.Origin{}) { // else the server does it by itself, again and again
		p.note(ctx, "reconcile", "", "", err)
	}
	return sum, err
}

// Secret implements atoll.SecretKeeper.
func (p *provider) Secret(ctx context.Context, id string) (string, error) {
	raw, err := atoll.Secret(ctx, p.Provider, id)
	p.log.Note(ctx, outcome(store.AuditEvent{Op: "secret", Sandbox: id}, err), true)
	return raw, err
}

type sandbox struct {
	atoll.SandboxLayer
	p *provider
}

// note writes down what was done to the sandbox.
func (s *sandbox) note(ctx context.Context, op, project string, err error) {
	s.p.log.Note(ctx, outcome(store.AuditEvent{Op: op, Project: project, Sandbox: s.ID()}, err), true)
}

// do notes a call that has no more to tell.
func (s *sandbox) do(ctx context.Context, op string, call func() error) error {
	err := call()
	s.note(ctx, op, s.p.projectOf(ctx, s.Sandbox), err)
	return err
}

// Start implements atoll.Sandbox.
func (s *sandbox) Start(ctx context.Context) error {
	return s.do(ctx, "start", func() error { return s.SandboxLayer.Start(ctx) })
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	return s.do(ctx, "stop", func() error { return s.SandboxLayer.Stop(ctx, grace) })
}

// Pause implements atoll.Pauser.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.do(ctx, "pause", func() error { return atoll.Pause(ctx, s.Sandbox) })
}

// Resume implements atoll.Pauser.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.do(ctx, "resume", func() error { return atoll.Resume(ctx, s.Sandbox) })
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	return s.do(ctx, "extend", func() error { return atoll.Extend(ctx, s.Sandbox, ttl) })
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context) (snap atoll.Snapshot, err error) {
	err = s.do(ctx, "snapshot", func() error {
		snap, err = atoll.TakeSnapshot(ctx, s.Sandbox)
		return err
	})
	return snap, err
}

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	project := s.p.projectOf(ctx, s.Sandbox) // which nobody knows afterwards
	err := s.SandboxLayer.Remove(ctx, opts...)
	s.note(ctx, "remove", project, err)
	if err == nil {
		s.p.forget(s.ID())
	}
	return err
}

// Exec implements atoll.Sandbox. That it was started, or could not be, is written with
// others soon after.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	proc, err := s.SandboxLayer.Exec(ctx, cmd)
	s.p.log.Note(ctx, outcome(store.AuditEvent{Op: "exec", Project: s.p.projectOf(ctx, s.Sandbox), Sandbox: s.ID(), Command: cmd.Args}, err), false)
	return proc, err
}

// Sessions forwards.
func (p *provider) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	return session.List(ctx, p.Provider, project)
}

// Volumes forwards.
func (p *provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	return atoll.Volumes(ctx, p.Provider, project)
}

// Workspaces forwards.
func (p *provider) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	return workspace.List(ctx, p.Provider, project)
}

// Images forwards.
func (p *provider) Images(ctx context.Context) ([]atoll.Image, error) {
	return atoll.Images(ctx, p.Provider)
}

// Snapshots forwards.
func (p *provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	return atoll.Snapshots(ctx, p.Provider)
}

var (
	_ session.Manager      = (*provider)(nil)
	_ atoll.ProjectRemover = (*provider)(nil)
	_ atoll.VolumeStore    = (*provider)(nil)
	_ workspace.Manager    = (*provider)(nil)
	_ atoll.ImageStore     = (*provider)(nil)
	_ atoll.SnapshotStore  = (*provider)(nil)
	_ atoll.SecretKeeper   = (*provider)(nil)
	_ registry.Reconciler  = (*provider)(nil)

	_ atoll.Pauser      = (*sandbox)(nil)
	_ atoll.Extender    = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
