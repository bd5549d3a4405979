package providertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var errExists = errors.New("the sandbox still exists")

var watchPromises = []promise{
	{"Watch replays every sandbox, then yields synced, then changes", nil, func(t *testing.T, h *harness) {
		a := h.createSandbox(t, atoll.Spec{Name: "running"})
		b := h.createSandbox(t, atoll.Spec{Name: "created", NoStart: true})
		w := h.startWatch(t, h.newContext(t))
		seen := map[string]atoll.Status{}
		for ev := range w.events {
			if ev.Type == atoll.EventSynced {
				break
			}
			if _, twice := seen[ev.Status.ID]; twice {
				t.Errorf("%s is replayed twice", ev.Status.ID)
			}
			seen[ev.Status.ID] = ev.Status
		}
		if len(seen) != 2 {
			t.Errorf("%d sandboxes were replayed, want 2", len(seen))
		}
		for _, sb := range []atoll.Sandbox{a, b} {
			checkSameStatus(t, "the replay", seen[sb.ID()], h.getStatus(t, sb))
		}
		c := h.createSandbox(t, atoll.Spec{Name: "new"})
		w.waitForState(t, h, c.ID(), atoll.StateRunning)
		if err := c.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		w.waitForState(t, h, c.ID(), atoll.StateStopped)
		if err := c.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		w.waitForState(t, h, c.ID(), atoll.StateRemoved)
	}},
	{"events of a sandbox come in order, removed is the last", nil, func(t *testing.T, h *harness) {
		w := h.startWatch(t, h.newContext(t))
		w.waitForSync(t, h)
		sb := h.createSandbox(t, atoll.Spec{NoStart: true})
		steps := []func(context.Context) error{sb.Start, func(ctx context.Context) error { return sb.Stop(ctx, 0) }}
		if h.p.Info().Caps.Restart {
			steps = append(steps, steps...)
		}
		for i, step := range steps {
			if err := step(h.newContext(t)); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		want := []atoll.State{atoll.StateCreated}
		for range len(steps) / 2 {
			want = append(want, atoll.StateRunning, atoll.StateStopped)
		}
		want = append(want, atoll.StateRemoved)
		got := w.collectStates(t, h, sb.ID())
		got = slices.DeleteFunc(got, func(s atoll.State) bool { return s == atoll.StateCreating })
		if !slices.Equal(slices.Compact(got), want) {
			t.Errorf("the states were %v, want %v", got, want)
		}
	}},
	{"the end of a main process is an event", nil, func(t *testing.T, h *harness) {
		w := h.startWatch(t, h.newContext(t))
		w.waitForSync(t, h)
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("exit", 3)})
		st := w.waitForState(t, h, sb.ID(), atoll.StateFailed)
		if st.Exit == nil || st.Exit.Code != 3 || st.Reason == "" {
			t.Errorf("the event has exit %v and reason %q", st.Exit, st.Reason)
		}
	}},
	{"the end of a TTL is an event", nil, func(t *testing.T, h *harness) {
		w := h.startWatch(t, h.newContext(t))
		w.waitForSync(t, h)
		sb := h.createSandbox(t, atoll.Spec{TTL: atoll.Duration(500 * time.Millisecond)})
		if got := w.collectStates(t, h, sb.ID()); slices.Contains(got, atoll.StateFailed) {
			t.Errorf("the states were %v", got)
		}
	}},
	{"a sandbox that is being removed has not failed", nil, func(t *testing.T, h *harness) {
		w := h.startWatch(t, h.newContext(t))
		w.waitForSync(t, h)
		running, stopped := h.plainSandbox(t), h.plainSandbox(t)
		if err := stopped.Stop(h.newContext(t), h.shortLimit()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		removed := make(chan struct{})
		var polls sync.WaitGroup
		polls.Go(func() {
			for {
				list, err := h.p.List(h.newContext(t), atoll.Filter{})
				if err != nil {
					t.Errorf("List: %v", err)
				}
				for _, st := range list {
					if st.State == atoll.StateFailed {
						t.Errorf("List has the state %s, %q", st.State, st.Reason)
					}
				}
				select {
				case <-removed:
					return
				default:
				}
			}
		})
		for _, sb := range []atoll.Sandbox{stopped, running} {
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
		close(removed)
		polls.Wait()
		for _, sb := range []atoll.Sandbox{stopped, running} {
			if got := w.collectStates(t, h, sb.ID()); slices.Contains(got, atoll.StateFailed) {
				t.Errorf("the states were %v", got)
			}
		}
	}},
	{"a Watch ends with its context's error, as its last pair", nil, func(t *testing.T, h *harness) {
		ctx, cancel := context.WithCancel(h.newContext(t))
		w := h.startWatch(t, ctx)
		w.waitForSync(t, h)
		cancel()
		wantCtx(t, "Watch", w.waitForEnd(t, h), context.Canceled)
	}},
	{"a Watch with an ended context yields only its error", nil, func(t *testing.T, h *harness) {
		ctx, cancel := context.WithCancel(h.newContext(t))
		cancel()
		wantCtx(t, "Watch", h.startWatch(t, ctx).waitForEnd(t, h), context.Canceled)
	}},
	{"the caller may break off at once or later", nil, func(t *testing.T, h *harness) {
		h.plainSandbox(t)
		for n := range 2 {
			i := 0
			runWithin(t, h.shortLimit(), "breaking out of Watch", func() {
				for range h.p.Watch(h.newContext(t)) {
					if i++; i > n {
						break
					}
				}
			})
		}
	}},
	{"Close ends a Watch with ErrUnavailable", nil, func(t *testing.T, h *harness) {
		w := h.startWatch(t, h.newContext(t))
		w.waitForSync(t, h)
		if err := h.p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		h.closed = true
		wantKind(t, "Watch", w.waitForEnd(t, h), atoll.ErrUnavailable)
	}},
	{"a slow reader blocks nobody, and gets an error when it missed events", nil, func(t *testing.T, h *harness) {
		stop := make(chan struct{})
		synced := make(chan struct{})
		done := make(chan error, 1)
		got := 0
		go func() {
			var last error
			for ev, err := range h.p.Watch(h.newContext(t)) {
				if last = err; err != nil {
					break
				}
				if ev.Type == atoll.EventSynced {
					close(synced)
					<-stop
					continue
				}
				if got++; ev.Status.State == atoll.StateRemoved && ev.Status.Spec.Name == "last" {
					break
				}
			}
			done <- last
		}()
		<-synced
		runWithin(t, h.longLimit(), "200 creates and removes while a reader sleeps", func() {
			for i := range 200 {
				spec := atoll.Spec{NoStart: true}
				if i == 199 {
					spec.Name = "last"
				}
				sb, err := h.p.Create(h.newContext(t), h.completeSpec(spec))
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
					t.Errorf("Remove: %v", err)
					return
				}
			}
		})
		close(stop)
		select {
		case err := <-done:
			if err != nil {
				wantKind(t, "Watch", err, atoll.ErrUnavailable)
			} else if got < 400 {
				t.Errorf("the reader got %d events of 400, and no error", got)
			}
		case <-time.After(h.shortLimit()):
			t.Error("the reader got neither the last event nor an error")
		}
	}},
	{"many Watches at once see the same events", nil, func(t *testing.T, h *harness) {
		var ws []*eventReader
		for range 10 {
			w := h.startWatch(t, h.newContext(t))
			w.waitForSync(t, h)
			ws = append(ws, w)
		}
		sb := h.plainSandbox(t)
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		for _, w := range ws {
			w.waitForState(t, h, sb.ID(), atoll.StateRunning)
			w.waitForState(t, h, sb.ID(), atoll.StateRemoved)
		}
	}},
}

// An eventReader reads a Watch in the background.
type eventReader struct {
	events chan atoll.Event // closed at the end
	err    error            // of the last pair; valid when events is closed
}

// startWatch starts a Watch that ends with the subtest.
func (h *harness) startWatch(t *testing.T, ctx context.Context) *eventReader {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w := &eventReader{events: make(chan atoll.Event, 10000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(w.events)
		for ev, err := range h.p.Watch(ctx) {
			if w.err != nil {
				t.Errorf("after the error %v Watch yielded %+v, %v", w.err, ev, err)
			}
			if err != nil {
				w.err = err
				continue
			}
			if ev.Time.IsZero() {
				t.Errorf("an event has no time: %+v", ev)
			}
			w.events <- ev
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// nextEvent returns the next event, or fails the test.
func (w *eventReader) nextEvent(t *testing.T, h *harness, what string) atoll.Event {
	t.Helper()
	select {
	case ev, ok := <-w.events:
		if !ok {
			t.Fatalf("the Watch ended with %v before an event %s", w.err, what)
		}
		return ev
	case <-time.After(h.shortLimit()):
		t.Fatalf("no event %s", what)
	}
	return atoll.Event{}
}

// waitForSync reads events until the end of the replay.
func (w *eventReader) waitForSync(t *testing.T, h *harness) {
	t.Helper()
	for w.nextEvent(t, h, "of type synced").Type != atoll.EventSynced {
	}
}

// waitForState reads events until the sandbox has the state, and returns its status.
func (w *eventReader) waitForState(t *testing.T, h *harness, id string, state atoll.State) atoll.Status {
	t.Helper()
	for {
		ev := w.nextEvent(t, h, "with "+id+" in state "+string(state))
		if ev.Type == atoll.EventState && ev.Status.ID == id && ev.Status.State == state {
			return ev.Status
		}
	}
}

// collectStates reads events until the sandbox is removed, and returns its states.
func (w *eventReader) collectStates(t *testing.T, h *harness, id string) []atoll.State {
	t.Helper()
	var got []atoll.State
	for {
		ev := w.nextEvent(t, h, "with the removal of "+id)
		if ev.Status.ID != id {
			continue
		}
		if ev.Status.State == atoll.StateFailed {
			t.Logf("%s failed: %s", id, ev.Status.Reason)
		}
		if got = append(got, ev.Status.State); ev.Status.State == atoll.StateRemoved {
			return got
		}
	}
}

// waitForEnd reads events until the Watch ends, and returns its error.
func (w *eventReader) waitForEnd(t *testing.T, h *harness) error {
	t.Helper()
	timeout := time.After(h.shortLimit())
	for {
		select {
		case _, ok := <-w.events:
			if !ok {
				return w.err
			}
		case <-timeout:
			t.Fatal("the Watch does not end")
		}
	}
}
