//go:build linux

package gvisor_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// TestDurableConformance runs the suite's promises about commands with durable commands, which take another way.
func TestDurableConformance(t *testing.T) {
	needGVisor(t)
	opts := []providertest.Option{providertest.Slow(3), providertest.Shared("exec", "output", "time", "tree", "tty"), providertest.Only("exec", "output", "time", "tree", "tty")}
	if !testenv.RunAll() {
		opts = append(opts, providertest.WireOnly("exec", "output", "time", "tree", "tty"))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		return durableProvider{atoll.ProviderLayer{Provider: openProvider(t)}}
	}, opts...)
}

// A durable process continues with its work directory and the files that it has open in /work.
func TestDurableWork(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	p, err := sb.Exec(l.Context(), &atoll.Command{Durable: true, Args: []string{"sh", "-c", "mkdir -p a/b; cd a/b; exec 3>>log; n=0; while sleep 0.05; do n=$((n+1)); echo $n >&3; echo $n > last; done"}})
	l.Must("exec", err)
	count := func(sb atoll.Sandbox) (n, last int) {
		l.Poll(func() error {
			_, err := fmt.Sscan(l.Sh(sb, "cat a/b/log | wc -l; tail -n 1 a/b/log"), &n, &last)
			if err == nil && n < 2 {
				err = fmt.Errorf("%d lines", n)
			}
			return err
		})
		return n, last
	}
	_, before := count(sb)
	snap, err := atoll.TakeSnapshot(l.Context(), sb)
	l.Must("snapshot", err)
	defer func() { l.Must("remove the snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID)) }()
	if !snap.Work || snap.Size == 0 {
		t.Errorf("the snapshot is %+v, want the files of /work in it", snap)
	}
	for range 2 {
		fork := l.NewSandbox(atoll.Spec{Snapshot: snap.ID})
		l.Poll(func() error {
			if n, last := count(fork); n != last || last < before+2 {
				return fmt.Errorf("the log in the fork has %d lines, and ends with %d", n, last)
			}
			return nil
		})
		l.Sh(fork, "readlink /proc/[0-9]*/cwd | grep -qx /work/a/b")
	}
	if _, err := sb.Process(l.Context(), p.ID()); err != nil {
		t.Errorf("the original: %v", err)
	}
	// Without /work the process cannot continue.
	bare, err := atoll.TakeSnapshot(l.Context(), sb, atoll.WithoutWork())
	l.Must("snapshot", err)
	if _, err := l.Create(l.Context(), &atoll.Spec{Snapshot: bare.ID}); atoll.KindOf(err) != atoll.ErrConflict || !strings.Contains(err.Error(), "take the snapshot with /work") {
		t.Errorf("Create from a snapshot without the files of its process: %v", err)
	}
	l.Must("remove the snapshot", atoll.RemoveSnapshot(l.Context(), l, bare.ID))
	// The data volume of an earlier sandbox with the id remains as it is.
	fork := l.NewSandbox(atoll.Spec{Snapshot: snap.ID})
	l.Must("remove", fork.Remove(l.Context()))
	if _, err := l.Create(l.Context(), &atoll.Spec{ID: fork.ID(), Snapshot: snap.ID}); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("Create over a data volume: %v", err)
	}
	l.Must("remove the volume", fork.Remove(l.Context(), atoll.RemoveVolumes()))
}

// Durable processes, and no others, run in a sandbox from a snapshot, and in a sandbox from a snapshot of that.
func TestDurableGenerations(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	start := func(cmd atoll.Command) atoll.Process {
		p, err := sb.Exec(l.Context(), &cmd)
		l.Must("exec", err)
		return p
	}
	size := &atoll.Size{Rows: 24, Cols: 80}
	long := start(atoll.Command{Durable: true, Timeout: atoll.Duration(testenv.Scale(time.Minute)), Args: []string{"sleep", "1001"}})
	silent := start(atoll.Command{Durable: true, TTY: size, Args: []string{"sh", "-c", "exec < /dev/null > /dev/null 2>&1; touch /tmp/silent; exec sleep 1002"}})
	start(atoll.Command{TTY: size, Args: []string{"sh", "-c", "setsid sleep 1003 & touch /tmp/stray; sleep 1004"}})
	start(atoll.Command{TTY: size, Args: []string{"sh", "-c", "trap '' HUP; sleep 1005 &"}})
	l.Poll(func() error {
		return atoll.Run(l.Context(), sb, &atoll.Command{Args: []string{"test", "-e", "/tmp/silent", "-a", "-e", "/tmp/stray"}})
	})
	brief := start(atoll.Command{Durable: true, Args: []string{"sh", "-c", "sleep 1; echo output; exit 5"}})
	for generation := range 2 {
		snap, err := atoll.TakeSnapshot(l.Context(), sb)
		l.Must("snapshot", err)
		sb = l.NewSandbox(atoll.Spec{Snapshot: snap.ID})
		l.Must("remove the snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID))
		list, err := atoll.Processes(l.Context(), sb)
		l.Must("processes", err)
		for _, p := range list {
			if p.ID == long.ID() && p.Exit != nil || p.ID == silent.ID() && p.Exit != nil {
				t.Errorf("generation %d: process %q ended: %v", generation, p.Args, p.Exit)
			}
		}
		if got := l.Sh(sb, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o '[s]leep 10[0-9][0-9]' | sort | tr '\\n' ' '"); strings.TrimSpace(got) != "sleep 1001 sleep 1002" {
			t.Errorf("generation %d: the processes %q run, want the durable ones", generation, got)
		}
		p, err := sb.Process(l.Context(), silent.ID())
		l.Must("process", err)
		l.Must("resize a terminal that its process has closed", atoll.Resize(l.Context(), p, *size))
		if generation > 0 {
			continue
		}
		p, err = sb.Process(l.Context(), brief.ID())
		l.Must("process", err)
		exit, err := p.Wait(l.Context())
		var out bytes.Buffer
		l.Must("attach", p.Attach(l.Context(), &atoll.Attachment{Stdout: &out}))
		if err != nil || exit.Code != 5 || out.String() != "output\n" {
			t.Errorf("the process that ends: %v, %v, output %q", exit, err, &out)
		}
	}
}

// A program with a named pipe as its interpreter blocks neither others nor a snapshot for long.
func TestBlockedExec(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "mkfifo /tmp/fifo; printf '#!/tmp/fifo\\n' > /tmp/script; chmod +x /tmp/script")
	failed := make(chan error, 1)
	go func() {
		_, err := sb.Exec(l.Context(), &atoll.Command{Durable: true, Args: []string{"/tmp/script"}})
		failed <- err
	}()
	snap, err := atoll.TakeSnapshot(l.Context(), sb)
	l.Must("snapshot", err)
	l.Must("remove the snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID))
	l.Must("run another", atoll.Run(l.Context(), sb, &atoll.Command{Durable: true, Args: []string{"true"}}))
	if err := <-failed; atoll.KindOf(err) != atoll.ErrExecFailed {
		t.Errorf("Exec: %v", err)
	}
}

// A durableProvider makes all commands durable.
type durableProvider struct{ atoll.ProviderLayer }

func (p durableProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	return makeDurable(sb), err
}

func (p durableProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return makeDurable(sb), err
}

type durableSandbox struct{ atoll.SandboxLayer }

func makeDurable(sb atoll.Sandbox) atoll.Sandbox {
	if sb == nil {
		return nil
	}
	return durableSandbox{atoll.SandboxLayer{Sandbox: sb}}
}

func (s durableSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	durable := *cmd
	durable.Durable = true
	return s.Sandbox.Exec(ctx, &durable)
}
