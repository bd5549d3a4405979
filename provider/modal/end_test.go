//go:build linux

package modal

import (
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
)

// lived records running sandboxes whose instances Modal no longer knows, and returns their
// handles.
func lived(t *testing.T, p *Provider, notes ...note) (all []atoll.Sandbox) {
	t.Helper()
	for _, n := range notes {
		id := atoll.NewID()
		n.Spec.ID, n.Spec.Project, n.CreationID, n.Run, n.State = id, atoll.DefaultProject, id, "sb-"+id, atoll.StateRunning
		if _, err := p.store.writeNext(t.Context(), kindSandbox, id, nil, &n); err != nil {
			t.Fatal(err)
		}
		all = append(all, p.engine.NewHandle(id))
	}
	return all
}

// If the instance of a sandbox ends while a program stops the sandbox, every program gives the
// stop as the reason.
func TestStoppingIsWhy(t *testing.T) {
	p := account(t, Options{Ephemeral: true})
	main := atoll.Spec{Cmd: []string{"server"}}
	for i, sb := range lived(t, p, note{Spec: main}, note{Spec: main, Stopping: true}, note{Stopping: true}) {
		st, err := sb.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want, why, exits := atoll.StateStopped, false, i < 2
		if i == 0 {
			want, why = atoll.StateFailed, true
		}
		if st.State != want || (st.Reason != "") != why || (st.Exit != nil) != exits || exits && (st.Exit.Reason != "") != why {
			t.Errorf("%d: it is %s because of %q, with %+v; want %s", i, st.State, st.Reason, st.Exit, want)
		}
	}
}

// Unreadable logs delay a call by no more than one of them does, and not the next call for all
// sandboxes; a call for one of the sandboxes tries again.
func TestLogsAreAway(t *testing.T) {
	server, _ := stores(t)
	p := accountAt(t, server, Options{Ephemeral: true})
	p.engine.Sweeper.Close() // only the test looks
	all := lived(t, p, note{}, note{}, note{})
	var asked sync.WaitGroup
	asked.Add(len(all))
	together := make(chan struct{})
	go func() {
		asked.Wait()
		close(together)
	}()
	var mu sync.Mutex
	calls := 0
	server.Intercept(func(method string) error {
		if method != "SandboxGetLogs" {
			return nil
		}
		mu.Lock()
		if calls++; calls <= len(all) {
			asked.Done()
		}
		mu.Unlock()
		select {
		case <-together:
		case <-time.After(logStallTimeout * 9 / 10): // a second log would be requested after logStallTimeout
			t.Error("one log is only asked for when another could not be read")
		}
		return status.Error(codes.ResourceExhausted, "as planned")
	})
	defer server.Intercept(nil)
	for range 2 {
		before := server.Calls("SandboxGetLogs")
		list, err := p.List(t.Context(), atoll.Filter{})
		if err != nil || len(list) != len(all) || list[0].State != atoll.StateRunning {
			t.Errorf("List: %+v, %v", list, err)
		}
		if again := server.Calls("SandboxGetLogs") > before; again != (before == 0) {
			t.Errorf("logs are asked for: %v", again)
		}
	}
	if _, err := all[0].Status(t.Context()); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("Status: %v, want that its log is unreadable", err)
	}
	server.Intercept(nil)
	if st, err := all[0].Status(t.Context()); err != nil || st.State == atoll.StateRunning {
		t.Errorf("it is %s, %v", st.State, err)
	}
}

// While a program starts a sandbox, no other program keeps a caretaker of its volumes.
func TestNoCaretakerBesideAStart(t *testing.T) {
	server, _ := stores(t)
	p := accountAt(t, server, Options{})
	p.engine.Sweeper.Close()
	sb := p.engine.NewHandle(atoll.NewID())
	n := note{Spec: atoll.Spec{ID: sb.ID(), Project: atoll.DefaultProject, Workdir: atoll.DefaultWorkdir}, State: atoll.StateStopped, Volume: true, Starter: "other", LeaseExpires: time.Now().Add(time.Hour)}
	if _, err := p.store.writeNext(t.Context(), kindSandbox, sb.ID(), nil, &n); err != nil {
		t.Fatal(err)
	}
	if _, err := atoll.ReadFile(t.Context(), sb, "file"); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("ReadFile: %v, want it stopped", err)
	}
	if n := server.Calls("SandboxCreate"); n > 0 {
		t.Errorf("Modal was asked for %d sandboxes", n)
	}
}
