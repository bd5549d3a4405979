package watchhub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed46cd37a8/atoll"
)

func newStatus(id string, state atoll.State) atoll.Status { return atoll.Status{ID: id, State: state} }

// listOf returns a list function that always returns states.
func listOf(states ...atoll.Status) func() ([]atoll.Status, error) {
	return func() ([]atoll.Status, error) { return states, nil }
}

func eventString(ev atoll.Event) string {
	if ev.Type == atoll.EventSynced {
		return "synced"
	}
	return ev.Status.ID + ":" + string(ev.Status.State)
}

func TestReplayThenSyncedThenLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(listOf(newStatus("a", atoll.StateRunning)))
		h.Publish(newStatus("b", atoll.StateRunning)) // before anyone watches
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		var last error
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ev, err := range h.Watch(ctx) {
				if last = err; err == nil {
					got = append(got, eventString(ev))
				}
			}
		}()
		synctest.Wait()
		h.Publish(newStatus("a", atoll.StateStopped))
		h.Publish(newStatus("a", atoll.StateRemoved))
		synctest.Wait()
		cancel()
		<-done
		if want := "a:running synced a:stopped a:removed"; strings.Join(got, " ") != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if !errors.Is(last, context.Canceled) {
			t.Errorf("last error %v, want context.Canceled", last)
		}
		if len(h.watchers) != 0 {
			t.Error("the watcher is still known")
		}
	})
}

func TestChangesDuringTheReplayStayInOrder(t *testing.T) {
	var h *Hub
	h = New(func() ([]atoll.Status, error) {
		h.Publish(newStatus("a", atoll.StateRunning))
		h.Publish(newStatus("a", atoll.StateStopped))
		h.Publish(newStatus("b", atoll.StateRemoved))
		h.Publish(newStatus("c", atoll.StateRunning))
		return []atoll.Status{newStatus("a", atoll.StateCreated), newStatus("b", atoll.StateRunning), newStatus("d", atoll.StateRunning)}, nil
	})
	var got []string
	for ev, err := range h.Watch(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, eventString(ev))
		if ev.Type == atoll.EventSynced {
			break
		}
	}
	if want := "a:stopped d:running c:running synced"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(h.watchers) != 0 {
		t.Error("the watcher is still known after a break")
	}
}

// If list fails, a watcher gets its error and no states.
func TestListFails(t *testing.T) {
	failure := atoll.Errorf("list", "", atoll.ErrInternal, "disk on fire")
	h := New(func() ([]atoll.Status, error) { return []atoll.Status{newStatus("a", atoll.StateRunning)}, failure })
	n := 0
	for ev, err := range h.Watch(t.Context()) {
		if n++; n > 1 || !errors.Is(err, failure) {
			t.Errorf("%d: %v, %v, want only the error of list", n, eventString(ev), err)
		}
	}
	if len(h.watchers) != 0 {
		t.Error("the watcher is still known")
	}
}

func TestInterrupt(t *testing.T) {
	h := New(listOf())
	cause := errors.New("events were lost")
	h.Interrupt(cause) // nobody watches
	for range 2 {
		var last error
		for ev, err := range h.Watch(t.Context()) {
			if last = err; ev.Type == atoll.EventSynced {
				h.Interrupt(cause)
			}
		}
		if !errors.Is(last, cause) || atoll.KindOf(last) != atoll.ErrUnavailable {
			t.Errorf("a watch ends with %v, want ErrUnavailable and its cause", last)
		}
	}
}

func TestSlowReaderIsDropped(t *testing.T) {
	h := New(listOf())
	events := 0
	var last error
	for ev, err := range h.Watch(t.Context()) {
		if err != nil {
			last = err
			continue
		}
		events++
		if ev.Type == atoll.EventSynced {
			for i := range queueLimit + 1 {
				h.Publish(newStatus(fmt.Sprint(i), atoll.StateRunning))
			}
		}
	}
	if !errors.Is(last, atoll.ErrUnavailable) || events != 1 {
		t.Errorf("%d events, then %v; want one and ErrUnavailable", events, last)
	}
}

func TestClose(t *testing.T) {
	h := New(listOf())
	var last error
	for _, err := range h.Watch(t.Context()) {
		last = err
		h.Close()
		h.Close()
	}
	if !errors.Is(last, atoll.ErrUnavailable) {
		t.Errorf("a watch in progress ends with %v, want ErrUnavailable", last)
	}
	for ev, err := range h.Watch(t.Context()) {
		if !errors.Is(err, atoll.ErrUnavailable) {
			t.Errorf("a watch after Close yields %v, %v; want ErrUnavailable", ev, err)
		}
	}
	h.Publish(newStatus("a", atoll.StateRunning))
}

func TestReadersShareNothing(t *testing.T) {
	st := newStatus("a", atoll.StateRunning)
	st.Spec.Labels = map[string]string{"k": "v"}
	h := New(listOf(st))
	for ev := range h.Watch(t.Context()) {
		ev.Status.Spec.Labels["k"] = "changed"
		break
	}
	if st.Spec.Labels["k"] != "v" {
		t.Error("a reader changed the provider's labels")
	}
}

func TestManyAtOnce(t *testing.T) {
	h := New(listOf())
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			n := 0
			for ev, err := range h.Watch(t.Context()) {
				if err != nil {
					return
				}
				if ev.Type == atoll.EventState && ev.Status.State == atoll.StateRunning {
					if n++; n == 20 {
						return
					}
				}
			}
		})
		all.Go(func() {
			for range 50 {
				h.Publish(newStatus("x", atoll.StateRunning))
			}
		})
	}
	h.Publish(newStatus("x", atoll.StateStopped))
	h.Close()
	all.Wait()
}
