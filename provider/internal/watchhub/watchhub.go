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

// queueLimit is the number of changes that wait for one reader; a slower one is dropped.
const queueLimit = 1024

// A Hub distributes changes of state to watchers. Its methods may be called concurrently.
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
	err   error // the reason why the watch ends
}

// New returns a Hub. list returns the current state of every sandbox. The Hub calls it for each new
// watcher, without holding a lock. If list fails, the watcher gets its error and no state, since an
// incomplete list looks as if the missing sandboxes had been removed.
func New(list func() ([]atoll.Status, error)) *Hub {
	return &Hub{list: list, watchers: map[*watcher]struct{}{}}
}

// Publish sends a change to all watchers. It never blocks, and may be called with locks held that list
// needs. The caller must publish the changes of one sandbox in the order in which they happen.
func (h *Hub) Publish(st atoll.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) == 0 {
		return
	}
	ev := atoll.Event{Type: atoll.EventState, Status: st.Clone(), Time: time.Now()}
	for w := range h.watchers {
		if len(w.queue) == queueLimit {
			h.dropWatcher(w, atoll.Errorf("watch", "", atoll.ErrUnavailable, "the reader is more than %d changes behind: watch again", queueLimit))
			continue
		}
		w.queue = append(w.queue, ev)
		w.wakeReader()
	}
}

// Watch implements the Watch method of atoll.Provider.
func (h *Hub) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		w := &watcher{wake: make(chan struct{}, 1)}
		if err := h.addWatcher(w); err != nil {
			yield(atoll.Event{}, err)
			return
		}
		defer h.removeWatcher(w)
		if !h.replayStates(w, yield) {
			return
		}
		for {
			events, err := h.takeEvents(w)
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

// replayStates yields the current states. A change that is published during the call of list may be
// older or newer than the listed state. replayStates yields the state of the change instead, and so
// yields each sandbox's states in order.
func (h *Hub) replayStates(w *watcher, yield func(atoll.Event, error) bool) bool {
	states, err := h.list()
	if err != nil {
		yield(atoll.Event{}, err)
		return false
	}
	events, _ := h.takeEvents(w)
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

// Interrupt ends all current watches, because changes may have been missed. Their error is
// ErrUnavailable and wraps err. A new watch begins with the current states.
func (h *Hub) Interrupt(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		h.dropWatcher(w, atoll.Errorf("watch", "", atoll.ErrUnavailable, "changes may have been missed: watch again (%w)", err))
	}
}

// Close ends all watches, and those that begin later, with ErrUnavailable. A second Close does
// nothing.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		h.dropWatcher(w, errClosed())
	}
}

func errClosed() error {
	return atoll.Errorf("watch", "", atoll.ErrUnavailable, "the provider is closed")
}

func (h *Hub) addWatcher(w *watcher) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed()
	}
	h.watchers[w] = struct{}{}
	return nil
}

func (h *Hub) removeWatcher(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// dropWatcher ends a watcher with err. The caller holds h.mu.
func (h *Hub) dropWatcher(w *watcher, err error) {
	delete(h.watchers, w)
	w.queue, w.err = nil, err
	w.wakeReader()
}

func (h *Hub) takeEvents(w *watcher) ([]atoll.Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := w.queue
	w.queue = nil
	return events, w.err
}

func (w *watcher) wakeReader() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
