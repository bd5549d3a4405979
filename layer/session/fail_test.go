package session_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// sharedBackend is a provider that outlives the layers around it: Close does
// nothing.
type sharedBackend struct{ atoll.ProviderLayer }

func (sharedBackend) Close() error { return nil }

// openBackend returns a mock for several layers.
func openBackend(t *testing.T, o mock.Options) atoll.Provider {
	p := openMock(t, o)
	t.Cleanup(func() { p.Close() })
	return sharedBackend{atoll.ProviderLayer{Provider: p}}
}

// newFastLayer is newLayer with frequent checks.
func newFastLayer(p atoll.Provider, dir string, o session.Options) *session.Provider {
	return newLayer(p, dir, o.WithLook(50*time.Millisecond))
}

func workflowSpec(id string) *session.Spec {
	return &session.Spec{Scope: session.Scope{Kind: session.ScopeWorkflow, ID: id}}
}

func mustOpen(t *testing.T, p atoll.Provider, spec *session.Spec) session.OpenResult {
	t.Helper()
	o, err := session.Open(t.Context(), p, spec)
	if err != nil {
		t.Fatalf("OpenSession: %v", err)
	}
	return o
}

// checkCounts checks the number of sessions and sandboxes.
func checkCounts(ctx context.Context, p atoll.Provider, sessions, sandboxes int) error {
	all, err := session.List(ctx, p, "")
	boxes, listErr := p.List(ctx, atoll.Filter{})
	if err != nil || listErr != nil || len(all) != sessions || len(boxes) != sandboxes {
		return fmt.Errorf("got sessions %+v and sandboxes %+v, want %d and %d: %w", all, boxes, sessions, sandboxes, errors.Join(err, listErr))
	}
	return nil
}

func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(testenv.Scale(20 * time.Second))
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// If a program dies between any two steps, the next one can open or close the
// session, and a server completes the work.
func TestKilled(t *testing.T) {
	for _, step := range []string{"intent", "made", "replacing", "closing"} {
		for _, next := range []string{"open", "close", "server"} {
			t.Run(step+", then "+next, func(t *testing.T) {
				box, dir := openBackend(t, mock.Options{}), t.TempDir()
				// It does not check sessions, which could complete the work first.
				killed := newLayer(box, dir, session.Options{IdleTimeout: atoll.Never}.WithStep(func(name string) {
					if name == step {
						runtime.Goexit()
					}
				}))
				done := make(chan struct{})
				go func() {
					defer close(done)
					o, err := killed.OpenSession(t.Context(), workflowSpec("w"))
					if err != nil {
						t.Errorf("OpenSession: %v", err)
						return
					}
					if step == "replacing" {
						if sb, err := box.Get(t.Context(), o.Sandbox); err != nil || sb.Remove(t.Context(), atoll.RemoveVolumes()) != nil {
							t.Errorf("Remove: %v", err)
						}
						_, err = killed.OpenSession(t.Context(), workflowSpec("w"))
					} else {
						err = killed.CloseSession(t.Context(), "", o.Key)
					}
					t.Errorf("the program was not killed: %v", err)
				}()
				<-done
				if err := killed.Close(); err != nil {
					t.Fatal(err)
				}
				p := newFastLayer(box, dir, session.Options{Server: next == "server"})
				defer p.Close()
				switch next {
				case "open":
					o, want := mustOpen(t, p, workflowSpec("w")), session.OpeningMade
					if step == "replacing" { // the session had a sandbox before
						want = session.OpeningReplaced
					}
					if o.State != session.StateOpen || o.Opening != want || (o.Note != "") != (want == session.OpeningReplaced) {
						t.Errorf("second open: %+v", o)
					}
					if err := checkCounts(t.Context(), p, 1, 1); err != nil {
						t.Error(err)
					}
				case "close":
					if err := p.CloseSession(t.Context(), "", "workflow_w_sandbox"); err != nil {
						t.Errorf("CloseSession: %v", err)
					}
				}
				if next != "open" {
					eventually(t, func() error { return checkCounts(t.Context(), p, 0, 0) })
				}
			})
		}
	}
}

// While one program creates a session's sandbox, others wait for it.
func TestOthersWait(t *testing.T) {
	box, dir := openBackend(t, mock.Options{}), t.TempDir()
	begun, goOn := make(chan struct{}), make(chan struct{})
	first := newFastLayer(box, dir, session.Options{}.WithStep(func(name string) {
		if name == "intent" {
			close(begun)
			<-goOn
		}
	}))
	defer first.Close()
	second := newFastLayer(box, dir, session.Options{Server: true})
	defer second.Close()
	opened := make(chan session.OpenResult, 2)
	for _, p := range []atoll.Provider{first, second} {
		go func() { opened <- mustOpen(t, p, workflowSpec("w")) }()
		<-begun
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := second.CloseSession(ctx, "", "workflow_w_sandbox"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("CloseSession meanwhile: %v", err)
	}
	select {
	case o := <-opened:
		t.Errorf("OpenSession returned before the creation: %+v", o)
	case <-time.After(200 * time.Millisecond):
	}
	close(goOn)
	if a, b := <-opened, <-opened; a.Sandbox != b.Sandbox || a.Opening == b.Opening {
		t.Errorf("one program got %+v, the other %+v", a, b)
	}
	if err := checkCounts(t.Context(), second, 1, 1); err != nil {
		t.Error(err)
	}
}

// If the sandbox cannot be removed, its session reports why, and is closed as soon
// as possible.
func TestFailedClose(t *testing.T) {
	var broken atomic.Bool
	p := newFastLayer(openBackend(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if op == "remove" && broken.Load() {
			return atoll.Errorf("remove", "", atoll.ErrUnavailable, "the engine is down")
		}
		return nil
	}}), t.TempDir(), session.Options{})
	defer p.Close()
	broken.Store(true)
	o := mustOpen(t, p, workflowSpec("w"))
	if err := p.CloseSession(t.Context(), "", o.Key); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("CloseSession: %v", err)
	}
	all, err := p.Sessions(t.Context(), "")
	if err != nil || len(all) != 1 || all[0].State != session.StateClosing || !strings.Contains(all[0].Problem, "the engine is down") {
		t.Errorf("Sessions = %+v, %v; want one that is closing", all, err)
	}
	if _, err := p.OpenSession(t.Context(), workflowSpec("w")); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("OpenSession of a closing session: %v", err)
	}
	broken.Store(false)
	eventually(t, func() error { return checkCounts(t.Context(), p, 0, 0) })
}

// An unreachable sandbox does not count as gone.
func TestUnavailableIsNotGone(t *testing.T) {
	var broken atomic.Bool
	p := newFastLayer(openBackend(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if (op == "get" || op == "status" || op == "start") && broken.Load() {
			return atoll.Errorf(op, "", atoll.ErrUnavailable, "the engine is down")
		}
		return nil
	}}), t.TempDir(), session.Options{Server: true})
	defer p.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	broken.Store(true)
	if _, err := p.OpenSession(t.Context(), workflowSpec("w")); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("OpenSession: %v", err)
	}
	time.Sleep(200 * time.Millisecond) // several checks
	if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) != 1 {
		t.Errorf("Sessions = %+v, %v", all, err)
	}
	broken.Store(false)
	if again := mustOpen(t, p, workflowSpec("w")); again.Sandbox != o.Sandbox {
		t.Errorf("OpenSession replaced the sandbox: %+v", again)
	}
}

// If sandboxes end with programs, no other program can use the sandbox of a running
// program.
func TestSandboxOfAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	a, b := newFastLayer(openMock(t, mock.Options{}), dir, session.Options{}), newFastLayer(openMock(t, mock.Options{}), dir, session.Options{Server: true})
	defer b.Close()
	o := mustOpen(t, a, workflowSpec("w"))
	if _, err := b.OpenSession(t.Context(), workflowSpec("w")); atoll.KindOf(err) != atoll.ErrConflict || !strings.Contains(err.Error(), "atoll serve") {
		t.Errorf("OpenSession in another program: %v", err)
	}
	if err := b.CloseSession(t.Context(), "", o.Key); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("CloseSession in another program: %v", err)
	}
	if all, err := b.Sessions(t.Context(), ""); err != nil || len(all) != 1 {
		t.Errorf("Sessions = %+v, %v", all, err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if again := mustOpen(t, b, workflowSpec("w")); again.Opening != session.OpeningReplaced {
		t.Errorf("after the end of that program: %+v", again)
	}
}

// An open file or connection counts as use.
func TestInUse(t *testing.T) {
	idle := testenv.Scale(1200 * time.Millisecond) // long enough for the first use of a sandbox
	p := newFastLayer(openBackend(t, mock.Options{}), t.TempDir(), session.Options{IdleTimeout: atoll.Duration(idle)})
	defer p.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	sb, err := p.Get(t.Context(), o.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.WriteFile(t.Context(), sb, "f", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	r, _, err := atoll.Files(sb).Read(t.Context(), "f", 0)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(idle * 3 / 2)
	if err := checkCounts(t.Context(), p, 1, 1); err != nil {
		t.Errorf("while a file is open: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, func() error { return checkCounts(t.Context(), p, 0, 0) })
}
