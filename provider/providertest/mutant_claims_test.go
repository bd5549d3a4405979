package providertest_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// claimMutants break promises about features that a mock lacks or has only through options. Most of
// them claim the feature.
var claimMutants = []mutant{
	newMutant("ignores the TTL of a sandbox that never started", "expiry/TTL removes a stopped sandbox, and one never started",
		onMock(changeSpecs(func(s *atoll.Spec) {
			if s.NoStart {
				s.TTL = 0
			}
		}))),
	newMutant("ignores Extend", "expiry/Extend lengthens or shortens the time to live", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return unextendedSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("keeps the volume of a removed sandbox", "volumes/RemoveVolumes deletes the data volume of a removed sandbox too",
		onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
			return &removeOnceSandbox{SandboxLayer: atoll.SandboxLayer{Sandbox: sb}}
		})),
	newMutant("removes the volume when Create fails", "volumes/a Create that fails, or whose context ends, leaves a retained data volume",
		onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
			return volumeDropProvider{atoll.ProviderLayer{Provider: p}}
		})),
	newMutant("has no default grace", "patience/Stop with a negative grace uses the default", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return noGraceSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("writes on after the context ended", "files/a Write whose context ends halfway leaves the old file and nothing else", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return uncancelledSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("watches only its own changes", "restart/a Watch reports changes by another provider value",
		onMock(composeLayers(changeInfo(func(i *atoll.Info) { i.Caps.Survives = true }), func(_ *testing.T, p atoll.Provider) atoll.Provider {
			return &selfWatchProvider{ProviderLayer: atoll.ProviderLayer{Provider: p}}
		})),
		providertest.Reopen(func(_ *testing.T, p atoll.Provider) atoll.Provider {
			return unclosedProvider{p.(*selfWatchProvider).ProviderLayer}
		})),
	newMutant("uses all CPUs", "limits/the CPU limit applies to all processes together",
		onMock(composeLayers(changeInfo(func(i *atoll.Info) { i.Caps.CPULimit, i.Caps.Usage = true, true }), changeSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
			return highUsageSandbox{atoll.SandboxLayer{Sandbox: sb}, time.Now()}
		})))),
	newMutant("forgets ended commands", "limits/output of ended commands does not use up the memory",
		onMock(composeLayers(changeInfo(func(i *atoll.Info) { i.Caps.MemoryLimit = true }), changeSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
			return noProcessSandbox{atoll.SandboxLayer{Sandbox: sb}}
		})))),
	newMutant("hangs while a sandbox is paused", "pause/calls to a paused sandbox return in time", onMock(addPause(pauseFaults{slowDial: true}))),
	newMutant("hides that the time limit passed", "pause/a time limit that passes during a pause ends the command on Resume", onMock(addPause(pauseFaults{hidesTimeout: true}))),
	newMutant("resumes a sandbox to take a snapshot", "snapshot/a snapshot of a paused sandbox leaves it paused, or is ErrStopped", onMock(addPause(pauseFaults{resumes: true}))),
	newMutant("keeps the snapshot of a cancelled call", "snapshot/a TakeSnapshot whose context ends at any moment takes one or leaves nothing",
		onMock(addPause(pauseFaults{keepsCancelled: true}))),
	newMutant("takes no snapshot while files are in use", "snapshot/TakeSnapshot succeeds while files are in use", onMock(addPause(pauseFaults{refusesInUse: true}))),

	newMutant("accepts every network name", "named/a missing network is ErrNotExist, and the error names it",
		onMock(changeInfo(func(i *atoll.Info) { i.Caps.NetworkNamed = true }))),
	newMutant("publishes nothing", "named/a published port can be reached at the address in Status while the sandbox runs",
		onMock(changeInfo(func(i *atoll.Info) { i.Caps.NetworkNamed, i.Caps.Publish = true, true })),
		providertest.Network("any", func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		})),
	newMutant("shares no cache", "cache/a cache is shared in its project only, and outlives its sandboxes",
		onLocal(changeInfo(func(i *atoll.Info) { i.Caps.Cache = true }))),
	newMutant("ignores a request for GPUs", "caps/Create refuses a feature of a spec exactly if its cap is missing",
		onMock(changeSpecs(func(s *atoll.Spec) { s.Resources.GPUs = "" }))),
	newMutant("has workspaces without files", "workspaces/a repository is cloned, and each sandbox has its files before it starts",
		onMock(composeLayers(changeInfo(func(i *atoll.Info) { i.Caps.Workspaces = true }), func(_ *testing.T, p atoll.Provider) atoll.Provider {
			return emptyWorkspaceProvider{atoll.ProviderLayer{Provider: p}}
		})), providertest.Repository("https://example.com/a.git", "f", "text")),

	newMutant("returns exit signals without the cap", "exec/a process killed by a signal exits with 128 plus its number",
		onMock(changeInfo(func(i *atoll.Info) { i.Caps.ExitSignal = false }))),
	newMutant("does not survive its process", "crash/a sandbox keeps running when its creator is killed",
		onMock(changeInfo(func(i *atoll.Info) { i.Caps.Survives = true })), providertest.OtherProcess(startMaker)),
	newMutant("loses durable files in a crash", "crash/a sandbox whose creator was killed has failed, and starts again with its durable files",
		onMock(changeInfo(func(i *atoll.Info) { i.Caps.Durable, i.Isolation = atoll.DurableCrash, atoll.IsolationKernel })), providertest.OtherProcess(startMaker)),
	newMutant("does not crash", "crash/a sandbox that was killed has failed, and starts again with its durable files",
		onMock(changeInfo(func(*atoll.Info) {})), providertest.CrashSandbox(func(t *testing.T, _ atoll.Provider, sb atoll.Sandbox) {
			main, err := sb.Process(t.Context(), atoll.MainProcess)
			if err == nil {
				err = main.Signal(t.Context(), atoll.SIGKILL) // the sandbox stops, and does not fail
			}
			if err != nil {
				t.Fatal(err)
			}
		})),
	newMutant("fetches nothing in Prepare", "images/Prepare fetches all that Create needs",
		onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
			return latePullProvider{atoll.ProviderLayer{Provider: p}}
		}), imageOptions()...),
	newMutant("accepts every image", "images/Create refuses an image that cannot be fetched, and leaves nothing", onMock(changeSpecs(func(*atoll.Spec) {})), imageOptions()...),
	newMutant("accepts every tag", "images/Create refuses an image that its registry lacks, and leaves nothing", onMock(changeSpecs(func(*atoll.Spec) {})), imageOptions()...),
	newMutant("has images without files", "images/each sandbox starts with the files of its image, and changes only its own",
		onMock(changeSpecs(func(*atoll.Spec) {})), imageOptions()...),
	newMutant("leaves the sandbox of a failed Create", "steps/whichever step of a creation fails, nothing is left", newLeaf, stepOption()),
	newMutant("hides a failed step", "steps/whichever step of a creation fails, a retained data volume stays", newLeaf, stepOption()),
	newMutant("starts despite a failed step", "steps/whichever step of a start fails, the sandbox keeps its files and can be started again", newLeaf, stepOption()),
}

// crashDir is the environment variable that makes the test binary create a sandbox in that directory
// and wait to be killed.
const crashDir = "ATOLL_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		p, err := mock.New(mock.Options{Dir: dir})
		if err == nil {
			err = providertest.CreateAndWait(p, os.Stdin, os.Stdout)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// startMaker implements option OtherProcess with the mock.
func startMaker(t *testing.T) (*exec.Cmd, func() atoll.Provider) {
	dir, maker := t.TempDir(), exec.Command(os.Args[0])
	maker.Env = append(os.Environ(), crashDir+"="+dir)
	return maker, func() atoll.Provider {
		p, err := mock.New(mock.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// composeLayers returns a layer that applies inner, then outer.
func composeLayers(inner, outer layer) layer {
	return func(t *testing.T, p atoll.Provider) atoll.Provider { return outer(t, inner(t, p)) }
}

// changeSandboxes returns a layer that changes sandboxes.
func changeSandboxes(change func(atoll.Sandbox) atoll.Sandbox) layer {
	return func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return changedProvider{atoll.ProviderLayer{Provider: p}, change}
	}
}

// changeSpecs returns a layer that changes the specs of Create.
func changeSpecs(change func(*atoll.Spec)) layer {
	return func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return specProvider{atoll.ProviderLayer{Provider: p}, change}
	}
}

// A specProvider changes the specs of Create.
type specProvider struct {
	atoll.ProviderLayer
	change func(*atoll.Spec)
}

func (a specProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	s := *spec
	a.change(&s)
	return a.Provider.Create(ctx, &s)
}

// A volumeDropProvider removes the data volume when Create fails.
type volumeDropProvider struct{ atoll.ProviderLayer }

func (d volumeDropProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := d.Provider.Create(ctx, spec)
	if err != nil {
		_ = atoll.RemoveVolume(context.WithoutCancel(ctx), d.Provider, atoll.DefaultProject, "data-"+spec.ID)
	}
	return sb, err
}

// A removeOnceSandbox ignores every Remove after the first.
type removeOnceSandbox struct {
	atoll.SandboxLayer
	removed atomic.Bool
}

func (o *removeOnceSandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if o.removed.Swap(true) {
		return nil
	}
	return o.Sandbox.Remove(ctx, opts...)
}

// A noGraceSandbox takes a negative grace for none.
type noGraceSandbox struct{ atoll.SandboxLayer }

func (h noGraceSandbox) Stop(ctx context.Context, grace time.Duration) error {
	return h.Sandbox.Stop(ctx, max(grace, 0))
}

// An uncancelledSandbox goes on with a Write whose context has ended.
type uncancelledSandbox struct{ atoll.SandboxLayer }

func (d uncancelledSandbox) Files() atoll.FS { return uncancelledFS{atoll.Files(d.Sandbox)} }

type uncancelledFS struct{ atoll.FS }

func (f uncancelledFS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	return f.FS.Write(context.WithoutCancel(ctx), name, r, opts)
}

// A selfWatchProvider watches only the sandboxes that it created itself.
type selfWatchProvider struct {
	atoll.ProviderLayer
	mu   sync.Mutex
	made []string
}

func (v *selfWatchProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := v.Provider.Create(ctx, spec)
	if err == nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.made = append(v.made, sb.ID())
	}
	return sb, err
}

func (v *selfWatchProvider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		for ev, err := range v.Provider.Watch(ctx) {
			v.mu.Lock()
			own := ev.Type != atoll.EventState || slices.Contains(v.made, ev.Status.ID)
			v.mu.Unlock()
			if own && !yield(ev, err) {
				return
			}
		}
	}
}

// An unclosedProvider is a second value of a provider, whose Close does nothing.
type unclosedProvider struct{ atoll.ProviderLayer }

func (unclosedProvider) Close() error { return nil }

// A highUsageSandbox claims to use two CPUs.
type highUsageSandbox struct {
	atoll.SandboxLayer
	begin time.Time
}

func (g highUsageSandbox) Usage(context.Context) (atoll.Usage, error) {
	return atoll.Usage{CPU: atoll.Duration(2 * time.Since(g.begin))}, nil
}

// A noProcessSandbox finds no process.
type noProcessSandbox struct{ atoll.SandboxLayer }

func (a noProcessSandbox) Process(_ context.Context, id string) (atoll.Process, error) {
	return nil, atoll.E("process", id, atoll.ErrNotExist, nil)
}

// pauseFaults selects the faults of a provider that claims to pause and to take snapshots.
type pauseFaults struct {
	slowDial, resumes, keepsCancelled, refusesInUse, hidesTimeout bool
}

// addPause returns a layer that pretends to pause sandboxes and to take snapshots, with the faults.
func addPause(wrong pauseFaults) layer {
	return func(t *testing.T, p atoll.Provider) atoll.Provider {
		store := &fakeSnapshotStore{ProviderLayer: atoll.ProviderLayer{Provider: p}}
		store.info = p.Info()
		store.info.Caps.Pause, store.info.Caps.Snapshot = true, true
		return changeSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
			return &pausableSandbox{SandboxLayer: atoll.SandboxLayer{Sandbox: sb}, wrong: wrong, store: store}
		})(t, store)
	}
}

// A fakeSnapshotStore records snapshots without content.
type fakeSnapshotStore struct {
	atoll.ProviderLayer
	info atoll.Info
	mu   sync.Mutex
	kept []atoll.Snapshot
}

func (p *fakeSnapshotStore) Info() atoll.Info { return p.info }

func (p *fakeSnapshotStore) Snapshots(context.Context) ([]atoll.Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.kept), nil
}

func (p *fakeSnapshotStore) RemoveSnapshot(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.kept)
	p.kept = slices.DeleteFunc(p.kept, func(s atoll.Snapshot) bool { return s.ID == id })
	if len(p.kept) == n {
		return atoll.E("remove snapshot", id, atoll.ErrNotExist, nil)
	}
	return nil
}

// A pausableSandbox pretends to pause.
type pausableSandbox struct {
	atoll.SandboxLayer
	wrong  pauseFaults
	store  *fakeSnapshotStore
	paused atomic.Bool
	used   atomic.Bool // a file has been opened for reading
}

func (p *pausableSandbox) Pause(context.Context) error  { p.paused.Store(true); return nil }
func (p *pausableSandbox) Resume(context.Context) error { p.paused.Store(false); return nil }

func (p *pausableSandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := p.Sandbox.Status(ctx)
	if p.paused.Load() {
		st.State, st.Ready = atoll.StatePaused, false
	}
	return st, err
}

func (p *pausableSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	proc, err := p.Sandbox.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return pausableProcess{atoll.ProcessLayer{Process: proc}, p}, nil
}

type pausableProcess struct {
	atoll.ProcessLayer
	p *pausableSandbox
}

func (p pausableProcess) Signal(ctx context.Context, sig atoll.Signal) error {
	if p.p.paused.Load() {
		return atoll.E("signal", p.ID(), atoll.ErrConflict, nil)
	}
	return p.Process.Signal(ctx, sig)
}

func (p pausableProcess) Wait(ctx context.Context) (atoll.Exit, error) {
	exit, err := p.Process.Wait(ctx)
	exit.TimedOut = exit.TimedOut && !p.p.wrong.hidesTimeout
	return exit, err
}

func (p *pausableSandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if p.wrong.slowDial && p.paused.Load() {
		time.Sleep(2 * time.Second)
	}
	return atoll.Dial(ctx, p.Sandbox, port)
}

func (p *pausableSandbox) Files() atoll.FS { return pausableFS{atoll.Files(p.Sandbox), p} }

type pausableFS struct {
	atoll.FS
	p *pausableSandbox
}

func (f pausableFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	f.p.used.Store(true)
	return f.FS.Read(ctx, name, offset)
}

// Snapshot records a snapshot without content.
func (p *pausableSandbox) Snapshot(ctx context.Context, opts ...atoll.SnapshotOption) (atoll.Snapshot, error) {
	if p.wrong.refusesInUse && p.used.Load() {
		return atoll.Snapshot{}, atoll.Errorf("snapshot", p.ID(), atoll.ErrInternal, "a file is in use")
	}
	snap := atoll.Snapshot{ID: atoll.NewID(), Sandbox: p.ID()}
	if ctx.Err() == nil || p.wrong.keepsCancelled {
		p.store.mu.Lock()
		p.store.kept = append(p.store.kept, snap)
		p.store.mu.Unlock()
	}
	if p.wrong.resumes {
		p.paused.Store(false)
	}
	return snap, ctx.Err()
}

// imageOptions returns the options for an image. A mock can fetch every image.
func imageOptions() []providertest.Option {
	return []providertest.Option{
		providertest.PullableImage("docker.io/library/app:1"),
		providertest.ImageSource("/file", "text", func(t *testing.T) {}),
	}
}

// A latePullProvider fetches nothing in Prepare, and cannot fetch in Create.
type latePullProvider struct{ atoll.ProviderLayer }

func (latePullProvider) Prepare(context.Context, *atoll.Spec, func(atoll.Progress)) error { return nil }

func (latePullProvider) Create(_ context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	return nil, atoll.E("create", spec.Name, atoll.ErrUnavailable, nil)
}

// stepOption returns an option that opens providers which handle failed steps wrongly.
func stepOption() providertest.Option {
	return providertest.FailSteps(func(t *testing.T, step func(string) error) atoll.Provider {
		return steppedProvider{atoll.ProviderLayer{Provider: newLeaf(t)}, step}
	})
}

// A steppedProvider keeps the sandbox of a Create whose step fails, or ignores the failure if the spec
// has an id.
type steppedProvider struct {
	atoll.ProviderLayer
	step func(string) error
}

func (s steppedProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := s.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := s.step("say so"); err != nil && spec.ID == "" {
		return nil, err // without removing the sandbox
	}
	return steppedSandbox{atoll.SandboxLayer{Sandbox: sb}, s.step}, nil
}

// A steppedSandbox runs although a step of its Start fails.
type steppedSandbox struct {
	atoll.SandboxLayer
	step func(string) error
}

func (s steppedSandbox) Start(ctx context.Context) error {
	if err := s.Sandbox.Start(ctx); err != nil {
		return err
	}
	return s.step("say so")
}

// An emptyWorkspaceProvider has workspaces without files.
type emptyWorkspaceProvider struct{ atoll.ProviderLayer }

func (h emptyWorkspaceProvider) AddWorkspace(_ context.Context, spec *workspace.Spec, _ func(atoll.Progress)) (workspace.Workspace, error) {
	return workspace.Workspace{
		Project: atoll.DefaultProject, Name: spec.Name, Type: spec.Type(), Source: spec.Source,
		State: workspace.StateReady, Commit: "0123456789012345678901234567890123456789", Created: time.Now(),
	}, nil
}

func (h emptyWorkspaceProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	s := spec.Clone()
	s.Workspace = atoll.WorkspaceRef{}
	return h.Provider.Create(ctx, s)
}

// Workspaces forwards to the provider.
func (h emptyWorkspaceProvider) Workspaces(ctx context.Context, project string) ([]workspace.Workspace, error) {
	return workspace.List(ctx, h.Provider, project)
}

// UpdateWorkspace forwards to the provider.
func (h emptyWorkspaceProvider) UpdateWorkspace(ctx context.Context, project, name string, progress func(atoll.Progress)) (workspace.Workspace, error) {
	return workspace.Update(ctx, h.Provider, project, name, progress)
}

// RemoveWorkspace forwards to the provider.
func (h emptyWorkspaceProvider) RemoveWorkspace(ctx context.Context, project, name string) error {
	return workspace.Remove(ctx, h.Provider, project, name)
}
