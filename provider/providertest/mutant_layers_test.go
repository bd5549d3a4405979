package providertest_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os/exec"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
)

// A layer turns a provider that keeps its promises into a mutant.
type layer func(t *testing.T, p atoll.Provider) atoll.Provider

// onMock returns a function that opens a mock with the layer.
func onMock(wrap layer) func(*testing.T) atoll.Provider {
	return func(t *testing.T) atoll.Provider { return wrap(t, newLeaf(t)) }
}

// onLocal returns a function that opens a provider of local processes with the layer.
func onLocal(wrap layer) func(*testing.T) atoll.Provider {
	return func(t *testing.T) atoll.Provider {
		p, err := local.New(local.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return wrap(t, p)
	}
}

// onMockSandboxes returns a function that opens a mock whose sandboxes are changed.
func onMockSandboxes(change func(atoll.Sandbox) atoll.Sandbox) func(*testing.T) atoll.Provider {
	return onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return changedProvider{atoll.ProviderLayer{Provider: p}, change}
	})
}

// A changedProvider changes the sandboxes that Create and Get return.
type changedProvider struct {
	atoll.ProviderLayer
	change func(atoll.Sandbox) atoll.Sandbox
}

func (c changedProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := c.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return c.change(sb), nil
}

func (c changedProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := c.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.change(sb), nil
}

// An unremovableSandbox ignores Remove.
type unremovableSandbox struct{ atoll.SandboxLayer }

func (unremovableSandbox) Remove(context.Context, ...atoll.RemoveOption) error { return nil }

// An unextendedSandbox ignores Extend.
type unextendedSandbox struct{ atoll.SandboxLayer }

func (unextendedSandbox) Extend(context.Context, atoll.Duration) error { return nil }

// A strictSandbox returns exits with other codes than 0 as errors.
type strictSandbox struct{ atoll.SandboxLayer }

func (s strictSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return strictProcess{atoll.ProcessLayer{Process: p}}, nil
}

type strictProcess struct{ atoll.ProcessLayer }

func (p strictProcess) Wait(ctx context.Context) (atoll.Exit, error) {
	exit, err := p.Process.Wait(ctx)
	if err == nil && !exit.Success() {
		err = &atoll.ExitError{Exit: exit}
	}
	return exit, err
}

// A contextBoundSandbox kills a process when the context of its Exec ends.
type contextBoundSandbox struct{ atoll.SandboxLayer }

func (s contextBoundSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	if err == nil {
		context.AfterFunc(ctx, func() { p.Signal(context.WithoutCancel(ctx), atoll.SIGKILL) })
		p = contextBoundProcess{atoll.ProcessLayer{Process: p}, ctx}
	}
	return p, err
}

type contextBoundProcess struct {
	atoll.ProcessLayer
	ctx context.Context // of Exec
}

func (p contextBoundProcess) Signal(ctx context.Context, sig atoll.Signal) error {
	if p.ctx.Err() != nil {
		return atoll.E("signal", p.ID(), atoll.ErrStopped, nil)
	}
	return p.ProcessLayer.Signal(ctx, sig)
}

// An unlabelledSandbox hides its labels.
type unlabelledSandbox struct{ atoll.SandboxLayer }

func (s unlabelledSandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.Sandbox.Status(ctx)
	st.Spec.Labels = nil
	return st, err
}

// A bareGetProvider returns sandboxes without optional abilities from Get.
type bareGetProvider struct{ atoll.ProviderLayer }

func (f bareGetProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := f.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return struct{ atoll.Sandbox }{sb}, nil
}

// A falseCapsProvider claims the opposite caps of two stores.
type falseCapsProvider struct{ atoll.ProviderLayer }

func (b falseCapsProvider) Info() atoll.Info {
	info := b.Provider.Info()
	info.Caps.Snapshot, info.Caps.Volumes = !info.Caps.Snapshot, !info.Caps.Volumes
	return info
}

// An unsyncedProvider omits the synced event.
type unsyncedProvider struct{ atoll.ProviderLayer }

func (u unsyncedProvider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		for ev, err := range u.Provider.Watch(ctx) {
			if ev.Type != atoll.EventSynced && !yield(ev, err) {
				return
			}
		}
	}
}

// A parentProvider has a child, which Close ends, and a grandchild, which Close does not end.
type parentProvider struct {
	atoll.ProviderLayer
	child *exec.Cmd
	in    io.Closer
}

// newParent starts the child and the grandchild.
func newParent(t *testing.T, p atoll.Provider) atoll.Provider {
	t.Helper()
	cmd := exec.Command("sh", "-c", "sleep 1000 >&2 & echo $!; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var grandchild int
	if _, err := fmt.Fscanln(out, &grandchild); err != nil {
		t.Fatal(err)
	}
	orphans = append(orphans, grandchild)
	return &parentProvider{atoll.ProviderLayer{Provider: p}, cmd, in}
}

func (p *parentProvider) Close() error {
	p.in.Close()
	_ = p.child.Wait() // read fails without a line
	return p.Provider.Close()
}

// changeInfo returns a layer that changes the provider's Info. It removes from specs the features that
// the provider would refuse.
func changeInfo(change func(*atoll.Info)) layer {
	return func(_ *testing.T, p atoll.Provider) atoll.Provider {
		c := infoProvider{atoll.ProviderLayer{Provider: p}, p.Info()}
		change(&c.info)
		return c
	}
}

// An infoProvider has a changed Info.
type infoProvider struct {
	atoll.ProviderLayer
	info atoll.Info
}

func (c infoProvider) Info() atoll.Info { return c.info }

func (c infoProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	s := *spec
	s.Image, s.Resources, s.Network = "", atoll.Resources{}, atoll.Network{}
	s.Ports, s.Cache, s.CachePaths = nil, false, nil
	return c.Provider.Create(ctx, &s)
}

// A zeroExitSandbox reports exit code 0 for all processes.
type zeroExitSandbox struct{ atoll.SandboxLayer }

func (s zeroExitSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return zeroExitProcess{atoll.ProcessLayer{Process: p}}, nil
}

type zeroExitProcess struct{ atoll.ProcessLayer }

func (p zeroExitProcess) Wait(ctx context.Context) (atoll.Exit, error) {
	_, _ = p.Process.Wait(ctx)
	return atoll.Exit{}, ctx.Err()
}

// A noMainOutputSandbox has no main process after its end.
type noMainOutputSandbox struct{ atoll.SandboxLayer }

func (s noMainOutputSandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	st, err := s.Status(ctx)
	if err == nil && st.State != atoll.StateRunning {
		return nil, atoll.E("process", s.ID(), atoll.ErrStopped, nil)
	}
	return s.SandboxLayer.Process(ctx, id)
}

// A slowStatusSandbox ignores the context of Status, slowly.
type slowStatusSandbox struct{ atoll.SandboxLayer }

func (s slowStatusSandbox) Status(ctx context.Context) (atoll.Status, error) {
	if ctx.Err() != nil {
		time.Sleep(2 * time.Second)
	}
	return s.Sandbox.Status(context.WithoutCancel(ctx))
}

// A skipStopSandbox ignores Stop with an ended context.
type skipStopSandbox struct{ atoll.SandboxLayer }

func (s skipStopSandbox) Stop(ctx context.Context, grace time.Duration) error {
	if ctx.Err() != nil {
		return nil
	}
	return s.Sandbox.Stop(ctx, grace)
}

// A halfRemovedSandbox stops in a Remove with an ended context.
type halfRemovedSandbox struct{ atoll.SandboxLayer }

func (s halfRemovedSandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if ctx.Err() != nil {
		_ = s.Sandbox.Stop(context.WithoutCancel(ctx), 0)
		return ctx.Err()
	}
	return s.Sandbox.Remove(ctx, opts...)
}

// A noExitSandbox hides its exit.
type noExitSandbox struct{ atoll.SandboxLayer }

func (s noExitSandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.Sandbox.Status(ctx)
	st.Exit = nil
	return st, err
}

// A workdirSandbox runs all commands in the work directory.
type workdirSandbox struct{ atoll.SandboxLayer }

func (s workdirSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	c := *cmd
	c.Dir = ""
	return s.Sandbox.Exec(ctx, &c)
}

// A noStartSandbox refuses Start.
type noStartSandbox struct{ atoll.SandboxLayer }

func (s noStartSandbox) Start(context.Context) error {
	return atoll.E("start", s.ID(), atoll.ErrUnsupported, nil)
}

// A forceRemoveProvider removes images that are in use.
type forceRemoveProvider struct{ atoll.ProviderLayer }

func (c forceRemoveProvider) RemoveImage(ctx context.Context, ref string, _ bool) error {
	return atoll.RemoveImage(ctx, c.Provider, ref, true)
}

// An anyNameProvider ignores the provider's name in a spec.
type anyNameProvider struct{ atoll.ProviderLayer }

func (o anyNameProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	s := *spec
	s.Provider = ""
	return o.Provider.Create(ctx, &s)
}

// Images forwards to the provider.
func (c forceRemoveProvider) Images(ctx context.Context) ([]atoll.Image, error) {
	return atoll.Images(ctx, c.Provider)
}

// PruneImages forwards to the provider.
func (c forceRemoveProvider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	return atoll.PruneImages(ctx, c.Provider, opts)
}
