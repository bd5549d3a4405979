//go:build linux

package modal_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// If several programs start a sandbox at the same time, one does it, and all have the same
// instance afterwards: none ends the instance of another.
func TestStartedByMany(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{NoStart: true})
	all := []atoll.Sandbox{sb}
	for range 2 {
		other := reopen(t, p)
		defer other.Close()
		there, err := other.Get(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, there)
	}
	for range 3 {
		before := theLab.server.Calls("SandboxCreate")
		var boots [3]string
		var work sync.WaitGroup
		for i, sb := range all {
			work.Go(func() {
				if err := sb.Start(t.Context()); err != nil {
					t.Errorf("Start: %v", err)
					return
				}
				boots[i] = says(t, sb, "cat /proc/1/stat; touch /tmp/used")
			})
		}
		work.Wait()
		if n := theLab.server.Calls("SandboxCreate") - before; n != 1 {
			t.Errorf("Modal was asked for %d", n)
		}
		if names := lives(t, p); len(names) != 1 {
			t.Errorf("Modal has %q, want one", names)
		}
		says(t, sb, "ls /tmp/used")
		if err := sb.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// Frequent reads of a sandbox do not keep it from starting.
func TestStartWhileOthersLook(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{NoStart: true})
	done := make(chan struct{})
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				err := atoll.Run(t.Context(), sb, shell("true"))
				if _, killed := errors.AsType[*atoll.ExitError](err); err != nil && !killed && !errors.Is(err, atoll.ErrStopped) {
					t.Errorf("Run: %v", err)
				}
			}
		})
	}
	for range 3 {
		if err := sb.Start(t.Context()); err != nil {
			t.Errorf("Start: %v", err)
		}
		says(t, sb, "true")
		if err := sb.Stop(t.Context(), 0); err != nil {
			t.Errorf("Stop: %v", err)
		}
	}
	close(done)
	work.Wait()
}

// At whichever step of a start a program is killed, another one can start the sandbox; if none
// does, nothing of the start goes on.
func TestStarterIsKilled(t *testing.T) {
	p := provider(t, func(o *modal.Options) { modal.Making(o, brokenFor) })
	for _, step := range []string{"start", "SandboxTagsSet", "SandboxGetTaskId"} {
		t.Run(step, func(t *testing.T) {
			sb := created(t, p, atoll.Spec{NoStart: true})
			defer sb.Remove(t.Context())
			broken(t, p, sb.ID(), step)
			if err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			says(t, sb, "true")
			if names := lives(t, p); len(names) != 1 {
				t.Errorf("Modal has %q, want one", names)
			}
			if err := sb.Stop(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			broken(t, p, sb.ID(), step)
			if step != "start" && len(lives(t, p)) == 0 {
				t.Error("no life was left to be swept")
			}
			if _, err := p.List(t.Context(), atoll.Filter{}); err != nil {
				t.Fatal(err)
			}
			created(t, p, atoll.Spec{NoStart: true}) // which makes it sweep
			becomes(t, "nothing lives", sweptWithin, func() bool { return len(lives(t, p)) == 0 })
			if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateStopped {
				t.Errorf("it is %s, %v", st.State, err)
			}
		})
	}
}

// failMethod makes a method of the service fail, until back is called.
func failMethod(method string) (back func()) {
	theLab.server.Intercept(func(called string) error {
		if called == method {
			return status.Error(codes.Unavailable, "out of reach")
		}
		return nil
	})
	return func() { theLab.server.Intercept(nil) }
}

// While a log cannot be read, its content is not invented, and calls for other sandboxes are
// not delayed.
func TestLogIsAway(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", "echo said; until [ -e end ]; do sleep 0.1; done; exit 3"}})
	other := created(t, p, atoll.Spec{NoStart: true})
	back := failMethod("SandboxGetLogs")
	defer back()
	if err := atoll.WriteFile(t.Context(), sb, "end", nil, 0); err != nil {
		t.Fatal(err)
	}
	becomes(t, "its log is unreadable", 20*time.Second, func() bool {
		st, err := sb.Status(t.Context())
		if err == nil && st.State != atoll.StateRunning {
			t.Fatalf("it is %s, %v", st.State, st.Exit)
		}
		return errors.Is(err, atoll.ErrUnavailable) && strings.Contains(err.Error(), "cannot read its log")
	})
	all, err := p.List(t.Context(), atoll.Filter{})
	if err != nil || len(all) != 2 || !slices.ContainsFunc(all, func(st atoll.Status) bool { return st.ID == other.ID() }) {
		t.Errorf("List: %v, %v", all, err)
	}
	back()
	st, err := sb.Status(t.Context())
	if err != nil || st.State != atoll.StateFailed || st.Exit == nil || st.Exit.Code != 3 {
		t.Errorf("it is %+v, %v", st, err)
	}
	main, err := sb.Process(t.Context(), atoll.MainProcess)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := main.Attach(t.Context(), &atoll.Attachment{Stdout: &out}); err != nil || out.String() != "said\n" {
		t.Errorf("it said %q, %v", out.String(), err)
	}
}

// Changes of this program during a poll of all sandboxes are published in order: no removed
// sandbox is published again, and no new one as removed.
func TestWatchIsInOrder(t *testing.T) {
	p := provider(t, func(o *modal.Options) { modal.PollEvery(o, 10*time.Millisecond) })
	ended := created(t, p, atoll.Spec{})
	removed := created(t, p, atoll.Spec{})
	var seen sync.Mutex
	told := map[string][]atoll.State{}
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	ready := make(chan struct{})
	var begun atomic.Bool
	work.Go(func() {
		for ev, err := range p.Watch(ctx) {
			if err != nil {
				return
			}
			seen.Lock()
			told[ev.Status.ID] = append(told[ev.Status.ID], ev.Status.State)
			both := len(told[ended.ID()]) > 0 && len(told[removed.ID()]) > 0
			seen.Unlock()
			if both && begun.CompareAndSwap(false, true) {
				close(ready)
			}
		}
	})
	<-ready
	alive := instanceOf(t, p, ended.ID())
	asks, goOn := make(chan struct{}), make(chan struct{})
	var asked atomic.Bool
	theLab.server.Intercept(func(method string) error {
		if method == "SandboxWait" && asked.CompareAndSwap(false, true) { // the survey is about to record the end
			close(asks)
			<-goOn
		}
		return nil
	})
	defer theLab.server.Intercept(nil)
	if err := theLab.server.Preempt(alive); err != nil {
		t.Fatal(err)
	}
	<-asks
	if err := removed.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	made := created(t, p, atoll.Spec{})
	close(goOn)
	becomes(t, "the event of ended", 10*time.Second, func() bool {
		seen.Lock()
		defer seen.Unlock()
		return len(told[ended.ID()]) > 1
	})
	time.Sleep(100 * time.Millisecond) // some more polls
	seen.Lock()
	defer seen.Unlock()
	if want := []atoll.State{atoll.StateRunning, atoll.StateRemoved}; !slices.Equal(told[removed.ID()], want) {
		t.Errorf("of the removed one it tells %v, want %v", told[removed.ID()], want)
	}
	if want := []atoll.State{atoll.StateRunning}; !slices.Equal(told[made.ID()], want) {
		t.Errorf("of the new one it tells %v, want %v", told[made.ID()], want)
	}
}
