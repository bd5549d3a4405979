package providertest

import (
	"context"
	"io"
	"iter"
	"net"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// Faulty is a layer that lets p's calls fail as planned, before p sees them.
func Faulty(p atoll.Provider, plan *Plan) atoll.Provider {
	plan.mu.Lock()
	defer plan.mu.Unlock()
	plan.provider = append(plan.provider, p)
	return &faulty{atoll.ProviderLayer{Provider: p}, plan}
}

type faulty struct {
	atoll.ProviderLayer
	plan *Plan
}

func (f *faulty) sandbox(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return &faultySandbox{atoll.SandboxLayer{Sandbox: sb}, f.plan}, nil
}

func (f *faulty) Info() atoll.Info { return f.Provider.Info() }

func (f *faulty) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := f.plan.call("Provider.Create", spec.Name); err != nil {
		return nil, err
	}
	return f.sandbox(f.Provider.Create(ctx, spec))
}

func (f *faulty) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if err := f.plan.call("Provider.Get", id); err != nil {
		return nil, err
	}
	return f.sandbox(f.Provider.Get(ctx, id))
}

func (f *faulty) List(ctx context.Context, filter atoll.Filter) ([]atoll.Status, error) {
	if err := f.plan.call("Provider.List", ""); err != nil {
		return nil, err
	}
	return f.Provider.List(ctx, filter)
}

func (f *faulty) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	if err := f.plan.call("Provider.Watch", ""); err != nil {
		return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{}, err) }
	}
	return f.Provider.Watch(ctx)
}

func (f *faulty) Resolve(ctx context.Context, project, name string) (string, error) {
	if err := f.plan.call("Provider.Resolve", name); err != nil {
		return "", err
	}
	return atoll.ResolveID(ctx, f.Provider, project, name)
}

func (f *faulty) Members(ctx context.Context) ([]atoll.Member, error) {
	if err := f.plan.call("Provider.Members", ""); err != nil {
		return nil, err
	}
	return atoll.Members(ctx, f.Provider)
}

func (f *faulty) Probe(ctx context.Context) atoll.Probe {
	if err := f.plan.call("Provider.Probe", ""); err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	return atoll.ProbeProvider(ctx, f.Provider)
}

func (f *faulty) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if err := f.plan.call("Provider.Prepare", spec.Name); err != nil {
		return err
	}
	return atoll.Prepare(ctx, f.Provider, spec, progress)
}

func (f *faulty) RemoveProject(ctx context.Context, project string) error {
	if err := f.plan.call("Provider.RemoveProject", project); err != nil {
		return err
	}
	return atoll.RemoveProject(ctx, f.Provider, project)
}

func (f *faulty) Projects(ctx context.Context) ([]atoll.Project, error) {
	if err := f.plan.call("Provider.Projects", ""); err != nil {
		return nil, err
	}
	return atoll.Projects(ctx, f.Provider)
}

func (f *faulty) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	if err := f.plan.call("Provider.Volumes", project); err != nil {
		return nil, err
	}
	return atoll.Volumes(ctx, f.Provider, project)
}

func (f *faulty) RemoveVolume(ctx context.Context, project, name string) error {
	if err := f.plan.call("Provider.RemoveVolume", name); err != nil {
		return err
	}
	return atoll.RemoveVolume(ctx, f.Provider, project, name)
}

func (f *faulty) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	if err := f.plan.call("Provider.Workspaces", project); err != nil {
		return nil, err
	}
	return workspace.List(ctx, f.Provider, project)
}

func (f *faulty) OpenSession(ctx context.Context, spec *session.Spec) (session.Opened, error) {
	if err := f.plan.call("Provider.OpenSession", spec.Scope.ID); err != nil {
		return session.Opened{}, err
	}
	return session.Open(ctx, f.Provider, spec)
}

func (f *faulty) Sessions(ctx context.Context, project string) ([]session.Session, error) {
	if err := f.plan.call("Provider.Sessions", project); err != nil {
		return nil, err
	}
	return session.List(ctx, f.Provider, project)
}

func (f *faulty) CloseSession(ctx context.Context, project, key string) error {
	if err := f.plan.call("Provider.CloseSession", key); err != nil {
		return err
	}
	return session.Close(ctx, f.Provider, project, key)
}

func (f *faulty) AddWorkspace(ctx context.Context, spec *workspace.Spec, progress func(atoll.Progress)) (workspace.Workspace, error) {
	if err := f.plan.call("Provider.AddWorkspace", spec.Name); err != nil {
		return workspace.Workspace{}, err
	}
	return workspace.Add(ctx, f.Provider, spec, progress)
}

func (f *faulty) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	if err := f.plan.call("Provider.UpdateWorkspace", name); err != nil {
		return workspace.Workspace{}, err
	}
	return workspace.Update(ctx, f.Provider, project, name, progress)
}

func (f *faulty) RemoveWorkspace(ctx context.Context, project, name string) error {
	if err := f.plan.call("Provider.RemoveWorkspace", name); err != nil {
		return err
	}
	return workspace.Remove(ctx, f.Provider, project, name)
}

func (f *faulty) Images(ctx context.Context) ([]atoll.Image, error) {
	if err := f.plan.call("Provider.Images", ""); err != nil {
		return nil, err
	}
	return atoll.Images(ctx, f.Provider)
}

func (f *faulty) RemoveImage(ctx context.Context, ref string, force bool) error {
	if err := f.plan.call("Provider.RemoveImage", ref); err != nil {
		return err
	}
	return atoll.RemoveImage(ctx, f.Provider, ref, force)
}

func (f *faulty) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	if err := f.plan.call("Provider.PruneImages", ""); err != nil {
		return atoll.Pruned{}, err
	}
	return atoll.PruneImages(ctx, f.Provider, opts)
}

func (f *faulty) ResolveImage(ctx context.Context, ref string) (string, error) {
	if err := f.plan.call("Provider.ResolveImage", ""); err != nil {
		return "", err
	}
	return atoll.ResolveImage(ctx, f.Provider, ref)
}

func (f *faulty) Secret(ctx context.Context, id string) (string, error) {
	if err := f.plan.call("Provider.Secret", id); err != nil {
		return "", err
	}
	return atoll.Secret(ctx, f.Provider, id)
}

func (f *faulty) Pools(ctx context.Context) (pool.Report, error) {
	if err := f.plan.call("Provider.Pools", ""); err != nil {
		return pool.Report{}, err
	}
	return pool.ReportOf(ctx, f.Provider)
}

func (f *faulty) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	if err := f.plan.call("Provider.Reserve", ""); err != nil {
		return "", err
	}
	return atoll.Reserve(ctx, f.Provider, spec)
}

func (f *faulty) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	if err := f.plan.call("Provider.Reconcile", ""); err != nil {
		return registry.Reconciliation{}, err
	}
	return registry.Reconcile(ctx, f.Provider, opts)
}

func (f *faulty) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	if err := f.plan.call("Provider.Snapshots", ""); err != nil {
		return nil, err
	}
	return atoll.Snapshots(ctx, f.Provider)
}

func (f *faulty) RemoveSnapshot(ctx context.Context, id string) error {
	if err := f.plan.call("Provider.RemoveSnapshot", id); err != nil {
		return err
	}
	return atoll.RemoveSnapshot(ctx, f.Provider, id)
}

type faultySandbox struct {
	atoll.SandboxLayer
	plan *Plan
}

func (f *faultySandbox) call(method string) error { return f.plan.call("Sandbox."+method, f.ID()) }

func (f *faultySandbox) Status(ctx context.Context) (atoll.Status, error) {
	if err := f.call("Status"); err != nil {
		return atoll.Status{}, err
	}
	return f.Sandbox.Status(ctx)
}

func (f *faultySandbox) Start(ctx context.Context) error {
	if err := f.call("Start"); err != nil {
		return err
	}
	return f.Sandbox.Start(ctx)
}

func (f *faultySandbox) Stop(ctx context.Context, grace time.Duration) error {
	if err := f.call("Stop"); err != nil {
		return err
	}
	return f.Sandbox.Stop(ctx, grace)
}

func (f *faultySandbox) process(p atoll.Process, err error) (atoll.Process, error) {
	if err != nil {
		return nil, err
	}
	return &faultyProcess{atoll.ProcessLayer{Process: p}, f.plan}, nil
}

func (f *faultySandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := f.call("Exec"); err != nil {
		return nil, err
	}
	return f.process(f.Sandbox.Exec(ctx, cmd))
}

func (f *faultySandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	if err := f.call("Process"); err != nil {
		return nil, err
	}
	return f.process(f.Sandbox.Process(ctx, id))
}

func (f *faultySandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := f.call("Remove"); err != nil {
		return err
	}
	return f.Sandbox.Remove(ctx, opts...)
}

func (f *faultySandbox) Files() atoll.FS { return &faultyFS{atoll.Files(f.Sandbox), f, nil} }

func (f *faultySandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := f.call("Dial"); err != nil {
		return nil, err
	}
	return atoll.Dial(ctx, f.Sandbox, port)
}

func (f *faultySandbox) Pause(ctx context.Context) error {
	if err := f.call("Pause"); err != nil {
		return err
	}
	return atoll.Pause(ctx, f.Sandbox)
}

func (f *faultySandbox) Resume(ctx context.Context) error {
	if err := f.call("Resume"); err != nil {
		return err
	}
	return atoll.Resume(ctx, f.Sandbox)
}

func (f *faultySandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	if err := f.call("Extend"); err != nil {
		return err
	}
	return atoll.Extend(ctx, f.Sandbox, ttl)
}

func (f *faultySandbox) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	if err := f.call("Snapshot"); err != nil {
		return atoll.Snapshot{}, err
	}
	return atoll.TakeSnapshot(ctx, f.Sandbox)
}

func (f *faultySandbox) Usage(ctx context.Context) (atoll.Usage, error) {
	if err := f.call("Usage"); err != nil {
		return atoll.Usage{}, err
	}
	return atoll.UsageOf(ctx, f.Sandbox)
}

func (f *faultySandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	if err := f.call("Processes"); err != nil {
		return nil, err
	}
	return atoll.Processes(ctx, f.Sandbox)
}

type faultyProcess struct {
	atoll.ProcessLayer
	plan *Plan
}

func (f *faultyProcess) Wait(ctx context.Context) (atoll.Exit, error) {
	if err := f.plan.call("Process.Wait", f.ID()); err != nil {
		return atoll.Exit{}, err
	}
	return f.Process.Wait(ctx)
}

func (f *faultyProcess) Signal(ctx context.Context, sig atoll.Signal) error {
	if err := f.plan.call("Process.Signal", f.ID()); err != nil {
		return err
	}
	return f.Process.Signal(ctx, sig)
}

func (f *faultyProcess) Attach(ctx context.Context, a *atoll.Attachment) error {
	if err := f.plan.call("Process.Attach", f.ID()); err != nil {
		return err
	}
	return f.Process.Attach(ctx, a)
}

func (f *faultyProcess) Resize(ctx context.Context, size atoll.Size) error {
	if err := f.plan.call("Process.Resize", f.ID()); err != nil {
		return err
	}
	return atoll.Resize(ctx, f.Process, size)
}

type faultyFS struct {
	atoll.FS
	sb  *faultySandbox
	err error // of the Sub that made it
}

func (f *faultyFS) call(method string) error {
	if f.err != nil {
		return f.err
	}
	return f.sb.plan.call("FS."+method, f.sb.ID())
}

// Sub fails with the first call of what it returns.
func (f *faultyFS) Sub(dir string) atoll.FS {
	return &faultyFS{atoll.SubFiles(f.FS, dir), f.sb, f.call("Sub")}
}

func (f *faultyFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	if err := f.call("Read"); err != nil {
		return nil, atoll.FileInfo{}, err
	}
	return f.FS.Read(ctx, name, offset)
}

func (f *faultyFS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	if err := f.call("Write"); err != nil {
		return atoll.FileInfo{}, err
	}
	return f.FS.Write(ctx, name, r, opts)
}

func (f *faultyFS) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	if err := f.call("Stat"); err != nil {
		return atoll.FileInfo{}, err
	}
	return f.FS.Stat(ctx, name)
}

func (f *faultyFS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	if err := f.call("List"); err != nil {
		return nil, err
	}
	return f.FS.List(ctx, name, recursive)
}

func (f *faultyFS) Mkdir(ctx context.Context, name string, mode uint32) error {
	if err := f.call("Mkdir"); err != nil {
		return err
	}
	return f.FS.Mkdir(ctx, name, mode)
}

func (f *faultyFS) Rename(ctx context.Context, from, to string) error {
	if err := f.call("Rename"); err != nil {
		return err
	}
	return f.FS.Rename(ctx, from, to)
}

func (f *faultyFS) Remove(ctx context.Context, name string, recursive bool) error {
	if err := f.call("Remove"); err != nil {
		return err
	}
	return f.FS.Remove(ctx, name, recursive)
}

func (f *faultyFS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	if err := f.call("WriteTar"); err != nil {
		return err
	}
	return f.FS.WriteTar(ctx, name, w)
}

func (f *faultyFS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	if err := f.call("ReadTar"); err != nil {
		return err
	}
	return f.FS.ReadTar(ctx, name, r)
}

func (f *faultyFS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	if err := f.call("Watch"); err != nil {
		return func(yield func(atoll.FileEvent, error) bool) { yield(atoll.FileEvent{}, err) }
	}
	return f.FS.Watch(ctx, name, recursive)
}
