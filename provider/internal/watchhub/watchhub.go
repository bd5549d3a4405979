// Package watchhub implements a provider's Watch: it replays the current states and then
// sends every change to any number of readers, none of which can delay it.
//
//	h := watchhub.New(func() ([]atoll.Status, error) { ... })
//	defer h.Close()
//	h.Publish(status) // on every change
package watchhub

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// queueLimit is how many changes a reader may be behind.
const queueLimit = 1024

// A Hub passes changes of state on to watchers. All methods may be called at
// once from many goroutines.
type Hub struct {
	list func() ([]atoll.Status, error)

	mu       sync.Mutex
	closed   bool
	watchers map[*watcher]struct{}
}

type watcher struct {
	wake chan struct{} // capacity 1

	// Guarded by Hub.mu.
	queue []atoll.Event
	err   error // why it ends
}

// New returns a Hub. list returns the current state of every sandbox; it is
// called for each new watcher, without a lock of the Hub's held. When it fails,
// that is what the watcher gets, and nothing else: half a list looks as if all
// others had been removed.
func New(list func() ([]atoll.Status, error)) *Hub {
	return &Hub{list: list, watchers: map[*watcher]struct{}{}}
}

// Publish tells all watchers of a change. It never blocks, and may be called
// with locks held that list needs. The changes of one sandbox must be
// published in the order in which they happen.
func (h *Hub) Publish(st atoll.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) == 0 {
		return
	}
	ev := atoll.Event{Type: atoll.EventState, Status: st.Clone(), Time: time.Now()}
	for w := range h.watchers {
		if len(w.queue) == queueLimit {
			h.drop(w, atoll.Errorf("watch", "", atoll.ErrUnavailable, "the reader is more than %d changes behind: watch again", queueLimit))
			continue
		}
		w.queue = append(w.queue, ev)
		w.poke()
	}
}

// Watch is atoll.Provider's.
func (h *Hub) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		w := &watcher{wake: make(chan struct{}, 1)}
		if err := h.add(w); err != nil {
			yield(atoll.Event{}, err)
			return
		}
		defer h.remove(w)
		if !h.replay(w, yield) {
			return
		}
		for {
			events, err := h.take(w)
			for _, ev := range events {
				ev.Status = ev.Status.Clone()
				if !yield(ev, nil) {
					return
				}
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(atoll.Event{}, err)
				return
			}
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
		}
	}
}

// replay yields the current states. A change that was published while they
// were being listed may be older or newer than what the list says; taking its
// state instead, and nothing before it, keeps each sandbox's states in order.
func (h *Hub) replay(w *watcher, yield func(atoll.Event, error) bool) bool {
	states, err := h.list()
	if err != nil {
		yield(atoll.Event{}, err)
		return false
	}
	events, _ := h.take(w)
	for _, ev := range events {
		i := slices.IndexFunc(states, func(st atoll.Status) bool { return st.ID == ev.Status.ID })
		switch removed := ev.Status.State == atoll.StateRemoved; {
		case i >= 0 && removed:
			states = slices.Delete(states, i, i+1)
		case i >= 0:
			states[i] = ev.Status
		case !removed:
			states = append(states, ev.Status)
		}
	}
	now := time.Now()
	for _, st := range states {
		if !yield(atoll.Event{Type: atoll.EventState, Status: st.Clone(), Time: now}, nil) {
			return false
		}
	}
	return yield(atoll.Event{Type: atoll.EventSynced, Time: now}, nil)
}

// Interrupt ends all watches that there are, because changes may have been
// missed. The error is ErrUnavailable and says err: who watches again gets the
// states as they are then.
func (h *Hub) Interrupt(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		h.drop(w, atoll.Errorf("watch", "", atoll.ErrUnavailable, "changes may have been missed: watch again (%w)", err))
	}
}

// Close ends all watches with ErrUnavailable, those to come as well. A second
// Close does nothing.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		h.drop(w, errClosed())
	}
}

func errClosed() error {
	return atoll.Errorf("watch", "", atoll.ErrUnavailable, "the provider is closed")
}

func (h *Hub) add(w *watcher) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed()
	}
	h.watchers[w] = struct{}{}
	return nil
}

func (h *Hub) remove(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// drop ends a watcher; h.mu is held.
func (h *Hub) drop(w *watcher, err error) {
	delete(h.watchers, w)
	w.queue, w.err = nil, err
	w.poke()
}

func (h *Hub) take(w *watcher) ([]atoll.Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := w.queue
	w.queue = nil
	return events, w.err
}

func (w *watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
