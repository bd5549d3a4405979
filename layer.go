package atoll

import (
	"context"
	"net"
)

// ProviderLayer forwards every method, the optional ones through their
// helpers, to the Provider it embeds. A layer embeds it and overrides what it
// changes; sandboxes that it hands out should embed SandboxLayer.
type ProviderLayer struct{ Provider }

// Resolve forwards.
func (l ProviderLayer) Resolve(ctx context.Context, project, name string) (string, error) {
	sb, err := Resolve(ctx, l.Provider, project, name)
	if err != nil {
		return "", err
	}
	return sb.ID(), nil
}

// Probe forwards.
func (l ProviderLayer) Probe(ctx context.Context) Probe { return ProbeProvider(ctx, l.Provider) }

// Members forwards.
func (l ProviderLayer) Members(ctx context.Context) ([]Member, error) {
	return Members(ctx, l.Provider)
}

// Prepare forwards.
func (l ProviderLayer) Prepare(ctx context.Context, spec *Spec, progress func(Progress)) error {
	return Prepare(ctx, l.Provider, spec, progress)
}

// RemoveProject forwards.
func (l ProviderLayer) RemoveProject(ctx context.Context, project string) error {
	return RemoveProject(ctx, l.Provider, project)
}

// Projects forwards.
func (l ProviderLayer) Projects(ctx context.Context) ([]Project, error) {
	return Projects(ctx, l.Provider)
}

// Volumes forwards.
func (l ProviderLayer) Volumes(ctx context.Context, project string) ([]Volume, error) {
	return Volumes(ctx, l.Provider, project)
}

// RemoveVolume forwards.
func (l ProviderLayer) RemoveVolume(ctx context.Context, project, name string) error {
	return RemoveVolume(ctx, l.Provider, project, name)
}

// Workspaces forwards.
func (l ProviderLayer) Workspaces(ctx context.Context, project string) ([]Workspace, error) {
	return Workspaces(ctx, l.Provider, project)
}

// AddWorkspace forwards.
func (l ProviderLayer) AddWorkspace(ctx context.Context, spec *WorkspaceSpec, progress func(Progress)) (Workspace, error) {
	return AddWorkspace(ctx, l.Provider, spec, progress)
}

// UpdateWorkspace forwards.
func (l ProviderLayer) UpdateWorkspace(ctx context.Context, project, name string, progress func(Progress)) (Workspace, error) {
	return UpdateWorkspace(ctx, l.Provider, project, name, progress)
}

// RemoveWorkspace forwards.
func (l ProviderLayer) RemoveWorkspace(ctx context.Context, project, name string) error {
	return RemoveWorkspace(ctx, l.Provider, project, name)
}

// OpenSession forwards.
func (l ProviderLayer) OpenSession(ctx context.Context, spec *SessionSpec) (OpenedSession, error) {
	return OpenSession(ctx, l.Provider, spec)
}

// Sessions forwards.
func (l ProviderLayer) Sessions(ctx context.Context, project string) ([]Session, error) {
	return Sessions(ctx, l.Provider, project)
}

// CloseSession forwards.
func (l ProviderLayer) CloseSession(ctx context.Context, project, key string) error {
	return CloseSession(ctx, l.Provider, project, key)
}

// Images forwards.
func (l ProviderLayer) Images(ctx context.Context) ([]Image, error) { return Images(ctx, l.Provider) }

// RemoveImage forwards.
func (l ProviderLayer) RemoveImage(ctx context.Context, ref string, force bool) error {
	return RemoveImage(ctx, l.Provider, ref, force)
}

// PruneImages forwards.
func (l ProviderLayer) PruneImages(ctx context.Context, opts PruneOptions) (Pruned, error) {
	return PruneImages(ctx, l.Provider, opts)
}

// ResolveImage forwards.
func (l ProviderLayer) ResolveImage(ctx context.Context, ref string) (string, error) {
	return ResolveImage(ctx, l.Provider, ref)
}

// Secret forwards.
func (l ProviderLayer) Secret(ctx context.Context, id string) (string, error) {
	return Secret(ctx, l.Provider, id)
}

// Reconcile forwards.
func (l ProviderLayer) Reconcile(ctx context.Context, opts ReconcileOptions) (Reconciliation, error) {
	return Reconcile(ctx, l.Provider, opts)
}

// Pools forwards.
func (l ProviderLayer) Pools(ctx context.Context) (PoolReport, error) { return Pools(ctx, l.Provider) }

// Reserve forwards.
func (l ProviderLayer) Reserve(ctx context.Context, spec *Spec) (string, error) {
	return Reserve(ctx, l.Provider, spec)
}

// Snapshots forwards.
func (l ProviderLayer) Snapshots(ctx context.Context) ([]Snapshot, error) {
	return Snapshots(ctx, l.Provider)
}

// RemoveSnapshot forwards.
func (l ProviderLayer) RemoveSnapshot(ctx context.Context, id string) error {
	return RemoveSnapshot(ctx, l.Provider, id)
}

// SandboxLayer forwards every method, the optional ones through their helpers,
// to the Sandbox it embeds.
type SandboxLayer struct{ Sandbox }

// Files forwards.
func (l SandboxLayer) Files() FS { return Files(l.Sandbox) }

// Dial forwards.
func (l SandboxLayer) Dial(ctx context.Context, port int) (net.Conn, error) {
	return Dial(ctx, l.Sandbox, port)
}

// Pause forwards.
func (l SandboxLayer) Pause(ctx context.Context) error { return Pause(ctx, l.Sandbox) }

// Resume forwards.
func (l SandboxLayer) Resume(ctx context.Context) error { return Resume(ctx, l.Sandbox) }

// Extend forwards.
func (l SandboxLayer) Extend(ctx context.Context, ttl Duration) error {
	return Extend(ctx, l.Sandbox, ttl)
}

// Snapshot forwards.
func (l SandboxLayer) Snapshot(ctx context.Context) (Snapshot, error) {
	return TakeSnapshot(ctx, l.Sandbox)
}

// Usage forwards.
func (l SandboxLayer) Usage(ctx context.Context) (Usage, error) { return UsageOf(ctx, l.Sandbox) }

// Processes forwards.
func (l SandboxLayer) Processes(ctx context.Context) ([]ProcessStatus, error) {
	return Processes(ctx, l.Sandbox)
}

// ProcessLayer forwards every method, the optional ones through their helpers,
// to the Process it embeds.
type ProcessLayer struct{ Process }

// Resize forwards.
func (l ProcessLayer) Resize(ctx context.Context, size Size) error {
	return Resize(ctx, l.Process, size)
}

var (
	_ Resolver       = ProviderLayer{}
	_ Combiner       = ProviderLayer{}
	_ Prober         = ProviderLayer{}
	_ Preparer       = ProviderLayer{}
	_ ProjectRemover = ProviderLayer{}
	_ ProjectLister  = ProviderLayer{}
	_ VolumeStore    = ProviderLayer{}
	_ WorkspaceStore = ProviderLayer{}
	_ SessionStore   = ProviderLayer{}
	_ ImageStore     = ProviderLayer{}
	_ SnapshotStore  = ProviderLayer{}
	_ ImageResolver  = ProviderLayer{}
	_ SecretKeeper   = ProviderLayer{}
	_ Reconciler     = ProviderLayer{}
	_ PoolKeeper     = ProviderLayer{}
	_ Reserver       = ProviderLayer{}

	_ Filer         = SandboxLayer{}
	_ Dialer        = SandboxLayer{}
	_ Pauser        = SandboxLayer{}
	_ Extender      = SandboxLayer{}
	_ Snapshotter   = SandboxLayer{}
	_ Meter         = SandboxLayer{}
	_ ProcessLister = SandboxLayer{}

	_ Resizer = ProcessLayer{}
)
