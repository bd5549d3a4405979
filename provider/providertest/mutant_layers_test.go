package providertest_test

import (
	"context"
	"io"
	"iter"
	"os/exec"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
)

// A layer is what makes a mutant of a provider that keeps its promises.
type layer func(t *testing.T, p atoll.Provider) atoll.Provider

// onMock opens mutants in which nothing is real.
func onMock(wrap layer) func(*testing.T) atoll.Provider {
	return func(t *testing.T) atoll.Provider { return wrap(t, leaf(t)) }
}

// onLocal opens mutants whose processes are this machine's.
func onLocal(wrap layer) func(*testing.T) atoll.Provider {
	return func(t *testing.T) atoll.Provider {
		p, err := local.New(local.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return wrap(t, p)
	}
}

// sandboxes opens mutants that change the sandboxes which a mock hands out.
func sandboxes(change func(atoll.Sandbox) atoll.Sandbox) func(*testing.T) atoll.Provider {
	return onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return changed{atoll.ProviderLayer{Provider: p}, change}
	})
}

type changed struct {
	atoll.ProviderLayer
	change func(atoll.Sandbox) atoll.Sandbox
}

func (c changed) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := c.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return c.change(sb), nil
}

func (c changed) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := c.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.change(sb), nil
}

type immortal struct{ atoll.SandboxLayer }

func (immortal) Remove(context.Context, ...atoll.RemoveOption) error { return nil }

type stingy struct{ atoll.SandboxLayer }

func (stingy) Extend(context.Context, atoll.Duration) error { return nil }

type strict struct{ atoll.SandboxLayer }

func (s strict) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
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

type clingy struct{ atoll.SandboxLayer }

func (s clingy) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	if err == nil {
		context.AfterFunc(ctx, func() { p.Signal(context.WithoutCancel(ctx), atoll.SIGKILL) })
	}
	return p, err
}

type unlabelled struct{ atoll.SandboxLayer }

func (s unlabelled) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.Sandbox.Status(ctx)
	st.Spec.Labels = nil
	return st, err
}

type forgetful struct{ atoll.ProviderLayer }

func (f forgetful) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := f.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return struct{ atoll.Sandbox }{sb}, nil
}

type boastful struct{ atoll.ProviderLayer }

func (b boastful) Info() atoll.Info {
	info := b.Provider.Info()
	info.Caps.Snapshot, info.Caps.Volumes = !info.Caps.Snapshot, !info.Caps.Volumes
	return info
}

type unsynced struct{ atoll.ProviderLayer }

func (u unsynced) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		for ev, err := range u.Provider.Watch(ctx) {
			if ev.Type != atoll.EventSynced && !yield(ev, err) {
				return
			}
		}
	}
}

// A parent has a child, which it takes with it, and a grandchild, which it does
// not.
type parent struct {
	atoll.ProviderLayer
	child *exec.Cmd
	in    io.Closer
}

func newParent(t *testing.T, p atoll.Provider) atoll.Provider {
	t.Helper()
	cmd := exec.Command("sh", "-c", "sleep 3 >&2 & echo made; read x")
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
	if _, err := io.ReadFull(out, make([]byte, len("made\n"))); err != nil {
		t.Fatal(err)
	}
	return &parent{atoll.ProviderLayer{Provider: p}, cmd, in}
}

func (p *parent) Close() error {
	p.in.Close()
	_ = p.child.Wait() // read finds no line, which is no success
	return p.Provider.Close()
}

// claiming changes what a provider says of itself, and hides from it what it
// would refuse.
func claiming(change func(*atoll.Info)) layer {
	return func(_ *testing.T, p atoll.Provider) atoll.Provider {
		c := claims{atoll.ProviderLayer{Provider: p}, p.Info()}
		change(&c.info)
		return c
	}
}

type claims struct {
	atoll.ProviderLayer
	info atoll.Info
}

func (c claims) Info() atoll.Info { return c.info }

func (c claims) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	s := *spec
	s.Image, s.Resources, s.Network = "", atoll.Resources{}, atoll.Network{}
	s.Ports, s.Cache, s.CachePaths = nil, false, nil
	return c.Provider.Create(ctx, &s)
}

type cheerful struct{ atoll.SandboxLayer }

func (s cheerful) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return cheerfulProcess{atoll.ProcessLayer{Process: p}}, nil
}

type cheerfulProcess struct{ atoll.ProcessLayer }

func (p cheerfulProcess) Wait(ctx context.Context) (atoll.Exit, error) {
	_, _ = p.Process.Wait(ctx)
	return atoll.Exit{}, ctx.Err()
}

type oblivious struct{ atoll.SandboxLayer }

func (s oblivious) Process(ctx context.Context, id string) (atoll.Process, error) {
	st, err := s.Status(ctx)
	if err == nil && st.State != atoll.StateRunning {
		return nil, atoll.E("process", s.ID(), atoll.ErrStopped, nil)
	}
	return s.SandboxLayer.Process(ctx, id)
}

type patient struct{ atoll.SandboxLayer }

func (s patient) Status(ctx context.Context) (atoll.Status, error) {
	if ctx.Err() != nil {
		time.Sleep(2 * time.Second)
	}
	return s.Sandbox.Status(context.WithoutCancel(ctx))
}

type lazy struct{ atoll.SandboxLayer }

func (s lazy) Stop(ctx context.Context, grace time.Duration) error {
	if ctx.Err() != nil {
		return nil
	}
	return s.Sandbox.Stop(ctx, grace)
}

type halfway struct{ atoll.SandboxLayer }

func (s halfway) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if ctx.Err() != nil {
		_ = s.Sandbox.Stop(context.WithoutCancel(ctx), 0)
		return ctx.Err()
	}
	return s.Sandbox.Remove(ctx, opts...)
}

type exitless struct{ atoll.SandboxLayer }

func (s exitless) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.Sandbox.Status(ctx)
	st.Exit = nil
	return st, err
}

// homely runs commands in the work directory, whatever they ask for.
type homely struct{ atoll.SandboxLayer }

func (s homely) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	c := *cmd
	c.Dir = ""
	return s.Sandbox.Exec(ctx, &c)
}

// ended are never started again.
type ended struct{ atoll.SandboxLayer }

func (s ended) Start(context.Context) error {
	return atoll.E("start", s.ID(), atoll.ErrUnsupported, nil)
}

// careless removes images whoever uses them.
type careless struct{ atoll.ProviderLayer }

func (c careless) RemoveImage(ctx context.Context, ref string, _ bool) error {
	return atoll.RemoveImage(ctx, c.Provider, ref, true)
}

// obliging makes sandboxes whoever was asked for.
type obliging struct{ atoll.ProviderLayer }

func (o obliging) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	s := *spec
	s.Provider = ""
	return o.Provider.Create(ctx, &s)
}

// Images forwards.
func (c careless) Images(ctx context.Context) ([]atoll.Image, error) {
	return atoll.Images(ctx, c.Provider)
}

// PruneImages forwards.
func (c careless) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	return atoll.PruneImages(ctx, c.Provider, opts)
}
