//go:build linux

package gvisor_test

import (
	"context"
	"fmt"
	"testing"

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
	sb := l.create(atoll.Spec{})
	p, err := sb.Exec(l.ctx(), &atoll.Command{Durable: true, Args: []string{"sh", "-c", "mkdir -p a/b; cd a/b; exec 3>>log; n=0; while sleep 0.05; do n=$((n+1)); echo $n >&3; echo $n > last; done"}})
	l.must("exec", err)
	count := func(sb atoll.Sandbox) (n, last int) {
		l.poll(func() error {
			_, err := fmt.Sscan(l.sh(sb, "cat a/b/log | wc -l; tail -n 1 a/b/log"), &n, &last)
			if err == nil && n < 2 {
				err = fmt.Errorf("%d lines", n)
			}
			return err
		})
		return n, last
	}
	_, before := count(sb)
	snap, err := atoll.TakeSnapshot(l.ctx(), sb)
	l.must("snapshot", err)
	defer func() { l.must("remove the snapshot", atoll.RemoveSnapshot(l.ctx(), l, snap.ID)) }()
	if !snap.Work || snap.Size == 0 {
		t.Errorf("the snapshot is %+v, want the files of /work in it", snap)
	}
	for range 2 {
		fork := l.create(atoll.Spec{Snapshot: snap.ID})
		l.poll(func() error {
			if n, last := count(fork); n != last || last < before+2 {
				return fmt.Errorf("the log in the fork has %d lines, and ends with %d", n, last)
			}
			return nil
		})
		l.sh(fork, "readlink /proc/[0-9]*/cwd | grep -qx /work/a/b")
	}
	if _, err := sb.Process(l.ctx(), p.ID()); err != nil {
		t.Errorf("the original: %v", err)
	}
	// The data volume of an earlier sandbox with the id remains as it is.
	fork := l.create(atoll.Spec{Snapshot: snap.ID})
	l.must("remove", fork.Remove(l.ctx()))
	if _, err := l.Create(l.ctx(), &atoll.Spec{ID: fork.ID(), Snapshot: snap.ID}); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("Create over a data volume: %v", err)
	}
	l.must("remove the volume", fork.Remove(l.ctx(), atoll.RemoveVolumes()))
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
