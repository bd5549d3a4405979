package router_test

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/router"
)

// A scriptedProvider is a mock whose watches follow a script.
type scriptedProvider struct {
	atoll.ProviderLayer
	scripts chan []any // one per Watch: statuses, synced, an error or a func; then Watch waits for the end of its context
}

const synced = "synced"

func newScripted(t *testing.T, scripts ...[]any) router.Member {
	healthy, next := mockMember(t), make(chan []any, len(scripts))
	for _, s := range scripts {
		next <- s
	}
	return router.Member{Name: "mock", Open: func() (atoll.Provider, error) {
		p, err := healthy.Open()
		return &scriptedProvider{atoll.ProviderLayer{Provider: p}, next}, err
	}}
}

func (s *scriptedProvider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		var script []any
		select {
		case script = <-s.scripts:
		default:
		}
		for _, step := range script {
			switch step := step.(type) {
			case atoll.Status:
				if !yield(atoll.Event{Type: atoll.EventState, Status: step, Time: time.Now()}, nil) {
					return
				}
			case string:
				if !yield(atoll.Event{Type: atoll.EventSynced, Time: time.Now()}, nil) {
					return
				}
			case func(context.Context):
				step(ctx)
			case error:
				yield(atoll.Event{}, step)
				return
			}
		}
		<-ctx.Done()
		yield(atoll.Event{}, ctx.Err())
	}
}

func status(id string, state atoll.State) atoll.Status {
	return atoll.Status{ID: id, Provider: "mock", State: state, Spec: atoll.Spec{Labels: map[string]string{"k": "v"}}}
}

// eventWord returns an event as text.
func eventWord(ev atoll.Event) string {
	if ev.Type == atoll.EventSynced {
		return synced
	}
	return ev.Status.ID + " " + string(ev.Status.State)
}

// A gate is closed when the reader has the whole replay.
type gate chan struct{}

func (g gate) wait(ctx context.Context) {
	select {
	case <-g:
	case <-ctx.Done():
	}
}

// wantEvents reads as many events as want has, and compares them.
func wantEvents(t *testing.T, p atoll.Provider, g gate, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(20*time.Second))
	defer cancel()
	var got []string
	for ev, err := range p.Watch(ctx) {
		if err != nil {
			t.Fatalf("Watch: %v after %q, want %q", err, got, want)
		}
		if ev.Type == atoll.EventSynced && g != nil {
			close(g)
		}
		if got = append(got, eventWord(ev)); len(got) == len(want) {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("Watch yielded %q, want %q", got, want)
	}
}

// When the watch of a member ends, the router starts it again, and reports
// sandboxes that are gone as removed.
func TestWatchAgain(t *testing.T) {
	g := make(gate)
	p := newRouter(t, router.Options{}, localMember(t), newScripted(t,
		[]any{status("a", atoll.StateRunning), status("b", atoll.StateRunning), synced, g.wait, status("b", atoll.StateStopped), errDown},
		[]any{status("b", atoll.StateRunning), errDown}, // an incomplete replay has no effect
		[]any{status("b", atoll.StateStopped), synced, status("b", atoll.StateRunning)},
	))
	wantEvents(t, p, g, "a running", "b running", synced, "b stopped", "b stopped", "a removed", "b running")
}

// The replay has each sandbox once, in its state when the last member has completed
// its replay.
func TestWatchReplaysOnce(t *testing.T) {
	s, release := newFlakyMember(t), make(chan struct{})
	here := newScripted(t, []any{
		status("a", atoll.StateRunning), status("b", atoll.StateRunning), synced,
		status("a", atoll.StateStopped), status("b", atoll.StateRemoved), status("c", atoll.StateCreated), status("c", atoll.StateRunning),
		func(context.Context) { close(release) },
	})
	there := router.Member{Name: "local", Open: func() (atoll.Provider, error) {
		p, err := s.Open()
		return slowWatch{atoll.ProviderLayer{Provider: p}, release}, err
	}}
	wantEvents(t, newRouter(t, router.Options{}, here, there), nil, "a stopped", "c running", synced)
}

// A slowWatch begins its watch when release is closed.
type slowWatch struct {
	atoll.ProviderLayer
	release chan struct{}
}

func (s slowWatch) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		select {
		case <-s.release:
		case <-ctx.Done():
		}
		s.Provider.Watch(ctx)(yield)
	}
}

// A member that fails, or does not answer, does not delay the replay for long.
func TestWatchWithoutOne(t *testing.T) {
	for what, other := range map[string]func(*flakyMember){
		"down":    func(s *flakyMember) { s.setError(errDown) },
		"hanging": func(s *flakyMember) { s.setError(errHangs) },
	} {
		t.Run(what, func(t *testing.T) {
			s := newFlakyMember(t)
			other(s)
			p := newRouter(t, router.Options{}, localMember(t), s.Member)
			sb := mustCreate(t, p, atoll.Spec{})
			wantEvents(t, p, nil, sb.ID()+" running", synced)
		})
	}
}

// A reader that does not read gets an error, and delays no provider.
func TestWatchSlowReader(t *testing.T) {
	g, done := make(gate), make(chan struct{})
	script := []any{synced, g.wait}
	for range 3000 {
		script = append(script, status("a", atoll.StateRunning))
	}
	p := newRouter(t, router.Options{}, localMember(t), newScripted(t, append(script, func(context.Context) { close(done) })))
	var last error
	for ev, err := range p.Watch(t.Context()) {
		if last = err; err == nil && ev.Type == atoll.EventSynced {
			close(g)
			select {
			case <-done:
			case <-time.After(testenv.Scale(10 * time.Second)):
				t.Fatal("the reader delays the provider")
			}
		}
	}
	wantError(t, "Watch", last, atoll.ErrUnavailable, "changes behind")
}

// The reader owns the events.
func TestWatchSharesNothing(t *testing.T) {
	g := make(gate)
	p := newRouter(t, router.Options{}, localMember(t), newScripted(t,
		[]any{status("a", atoll.StateRunning), synced, g.wait, errDown},
		[]any{synced},
	))
	for ev, err := range p.Watch(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Status.State == atoll.StateRemoved {
			if ev.Status.Spec.Labels["k"] != "v" {
				t.Errorf("the reader's change of the labels came back: %v", ev.Status.Spec.Labels)
			}
			break
		}
		if ev.Type == atoll.EventSynced && g != nil {
			close(g)
			g = nil
		}
		if ev.Type == atoll.EventState {
			ev.Status.Spec.Labels["k"] = "changed"
		}
	}
}

func TestWatchClosed(t *testing.T) {
	p := newRouter(t, router.Options{}, localMember(t), mockMember(t))
	var last error
	for ev, err := range p.Watch(t.Context()) {
		if last = err; ev.Type == atoll.EventSynced {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	wantError(t, "Watch", last, atoll.ErrUnavailable, "closed")
	for _, last = range p.Watch(t.Context()) {
	}
	wantError(t, "Watch after Close", last, atoll.ErrUnavailable, "closed")
}
