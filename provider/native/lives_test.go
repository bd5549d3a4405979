//go:build linux

package native_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A tally counts what sandboxes could leave behind.
type tally struct{ children, descriptors, mounts, cgroups int }

func (l *lab) takeTally() (now tally) {
	l.T.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	l.Must("list descriptors", err)
	for _, pid := range supervisedtest.ListProcesses(l.T) {
		if supervisedtest.ParentOf(pid) == os.Getpid() {
			now.children++
		}
	}
	now.descriptors, now.mounts = len(descriptors), len(l.listMounts())
	now.cgroups = len(supervisedtest.ListCgroups(l.T, l.opts.Cgroup))
	return now
}

// A sandbox leaves nothing behind in the process that made it, nor on the machine, however many came before.
func TestLives(t *testing.T) {
	l := newLab(t, ownCgroup("lives"))
	lives := 20
	if testenv.RunAll() {
		lives = 1000
	}
	lead := func() {
		sb, err := l.Create(l.Context(), &atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}})
		l.Must("create", err)
		l.Sh(sb, "echo kept > file; echo kept > /root/file")
		l.Must("stop", sb.Stop(l.Context(), 0))
		l.Must("start", sb.Start(l.Context()))
		if got := l.Sh(sb, "cat file /root/file"); got != "kept\nkept" {
			t.Errorf("after stop and start: %q", got)
		}
		l.RemoveSandbox(sb)
	}
	var before tally
	for i := range lives {
		if lead(); i == 2 { // connections are there by then
			l.Poll(func() error {
				if before = l.takeTally(); before.children != 1 {
					return fmt.Errorf("%d children, want a spare supervisor", before.children)
				}
				return nil
			})
		}
	}
	l.Poll(func() error {
		if now := l.takeTally(); now.children > before.children || now.descriptors > before.descriptors || now.mounts > before.mounts || now.cgroups > before.cgroups {
			return fmt.Errorf("after %d lives there are %+v, before %+v", lives, now, before)
		}
		return nil
	})
	l.Must("close", l.Close())
	l.awaitNothing()
}

// Many sandboxes that are made, used and removed at once all work, and nothing of them is left.
func TestManyAtOnce(t *testing.T) {
	l := newLab(t, ownCgroup("many"))
	count := 20
	if testenv.RunAll() {
		count = 200
	}
	inParallel := func(what string, f func(ctx context.Context, i int) error) {
		t.Helper()
		var all sync.WaitGroup
		for i := range count {
			ctx := l.Context()
			all.Go(func() {
				if err := f(ctx, i); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		all.Wait()
	}
	list := make([]atoll.Sandbox, count)
	inParallel("create", func(ctx context.Context, i int) (err error) {
		list[i], err = l.Create(ctx, &atoll.Spec{})
		return err
	})
	inParallel("exec", func(ctx context.Context, i int) error {
		if list[i] == nil {
			return nil
		}
		out, err := atoll.Output(ctx, list[i], &atoll.Command{Args: []string{"sh", "-c", "echo $0", fmt.Sprint(i)}})
		if got := strings.TrimSpace(string(out)); err == nil && got != fmt.Sprint(i) {
			err = fmt.Errorf("sandbox %d answers %q", i, got)
		}
		return err
	})
	inParallel("remove", func(ctx context.Context, i int) error {
		if list[i] == nil {
			return nil
		}
		return list[i].Remove(ctx, atoll.RemoveVolumes())
	})
	l.Must("close", l.Close())
	l.awaitNothing()
}

// Two processes that create, use and remove the same sandboxes at once get in each other's
// way but do no harm.
func TestTwoProcessesAtOnce(t *testing.T) {
	l := newLab(t)
	const rounds = "8"
	ids := []string{atoll.NewID(), atoll.NewID()}
	one, other := l.startProvider("churn", append([]string{rounds}, ids...)...), l.startProvider("churn", append([]string{rounds}, ids...)...)
	for i := range 8 {
		l.Must("churn", supervisedtest.ChurnSandbox(l.Provider, ids[i%2]))
	}
	if err := one.Wait(); err != nil {
		t.Errorf("the one: %v\n%s", err, one.Stderr)
	}
	if err := other.Wait(); err != nil {
		t.Errorf("the other: %v\n%s", err, other.Stderr)
	}
	l.RemoveAll()
}

// A process that dies at any moment of a sandbox's life leaves it in a state from which the
// next one can continue, and leaves nothing behind.
func TestProviderKilledAnywhere(t *testing.T) {
	l := newLab(t, ownCgroup("anywhere"))
	ids := []string{atoll.NewID(), atoll.NewID()}
	kills := 16
	if testing.Short() {
		kills = 5
	}
	states := map[atoll.State]int{}
	for i := range kills {
		other := l.startProvider("churn", append([]string{"1000"}, ids...)...)
		time.Sleep(time.Duration(100+23*i) * time.Millisecond) // another moment each time
		supervisedtest.KillAndWait(other)
		next := openLab(t, l.opts)
		for _, id := range ids {
			states[next.AwaitSettled(id)]++
		}
		l.Must("close", next.Close())
	}
	t.Logf("states after %d kills: %v", kills, states)
	l.RemoveAll()
	l.Must("close", l.Close())
	l.awaitNothing()
}
