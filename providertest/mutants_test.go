package providertest_test

import (
	"context"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/providertest"
)

// A mutant breaks one promise, and the suite has to notice in the subtest
// named.
type mutant struct {
	name   string
	caught string // by this subtest of Run
	wrap   func(t *testing.T, p atoll.Provider) atoll.Provider
}

var mutants = []mutant{
	{"removes nothing", "death/removing twice, and by another handle, does nothing", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return immortal{atoll.SandboxLayer{Sandbox: sb}}
	})},
	{"hides abilities", "truth/each optional ability is there exactly when its cap is", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return struct{ atoll.Sandbox }{sb}
	})},
	{"loses abilities in Get", "truth/a sandbox that Get finds has the abilities of one that Create made", func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return forgetful{atoll.ProviderLayer{Provider: p}}
	}},
	{"claims what it cannot", "truth/the stores are there exactly when their caps are", func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return boastful{atoll.ProviderLayer{Provider: p}}
	}},
	{"turns exits into errors", "exec/exit codes come back", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return strict{atoll.SandboxLayer{Sandbox: sb}}
	})},
	{"lets the context of Exec kill", "time/the context of Exec bounds the start, not the process", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return clingy{atoll.SandboxLayer{Sandbox: sb}}
	})},
	{"drops labels", "birth/Status, Get and List give back what Create was asked for", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return unlabelled{atoll.SandboxLayer{Sandbox: sb}}
	})},
	{"never says synced", "watch/Watch replays every sandbox, then says synced, then follows", func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return unsynced{atoll.ProviderLayer{Provider: p}}
	}},
	{"leaks a goroutine", "exec/exit codes come back", func(_ *testing.T, p atoll.Provider) atoll.Provider {
		go time.Sleep(time.Minute)
		return p
	}},
	{"leaks a descriptor", "exec/exit codes come back", func(t *testing.T, p atoll.Provider) atoll.Provider {
		if _, err := os.Open(os.DevNull); err != nil {
			t.Fatal(err)
		}
		return p
	}},
	{"leaks a child", "exec/exit codes come back", func(t *testing.T, p atoll.Provider) atoll.Provider {
		if err := exec.Command("true").Start(); err != nil {
			t.Fatal(err)
		}
		return p
	}},
	{"leaks a grandchild", "exec/exit codes come back", func(t *testing.T, p atoll.Provider) atoll.Provider {
		return newParent(t, p)
	}},
	{"leaks a directory", "exec/exit codes come back", func(t *testing.T, p atoll.Provider) atoll.Provider {
		if _, err := os.MkdirTemp(os.Getenv("MUTANT_DIR"), ""); err != nil {
			t.Fatal(err)
		}
		return p
	}},
}

// TestMutants runs the suite on each mutant in a process of its own, because
// there it has to fail.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			group, promise, _ := strings.Cut(m.caught, "/")
			pattern := "^TestMutant$/^" + group + "$/^" + strings.ReplaceAll(promise, " ", "_") + "$"
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v")
			cmd.Env = append(os.Environ(), "MUTANT="+m.name, "MUTANT_DIR="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestMutant/"+group+"/") {
				t.Errorf("%q did not notice: %v\n%s", m.caught, err, out)
			}
		})
	}
}

// TestMutant is the suite on the mutant that the environment names.
func TestMutant(t *testing.T) {
	name := os.Getenv("MUTANT")
	if name == "" {
		t.Skip("run by TestMutants")
	}
	dir := os.Getenv("MUTANT_DIR")
	leaks := func(t *testing.T) []string {
		names, err := filepath.Glob(dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for _, m := range mutants {
		if m.name == name {
			providertest.Run(t, func(t *testing.T) atoll.Provider { return m.wrap(t, leaf(t)) },
				providertest.Slow(0.1), providertest.Leaks(leaks))
			return
		}
	}
	t.Fatalf("no mutant %q", name)
}

// sandboxes changes the sandboxes that a provider hands out.
func sandboxes(change func(atoll.Sandbox) atoll.Sandbox) func(*testing.T, atoll.Provider) atoll.Provider {
	return func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return changed{atoll.ProviderLayer{Provider: p}, change}
	}
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
