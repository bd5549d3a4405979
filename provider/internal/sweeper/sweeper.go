// Package sweeper removes expired sandboxes, and unfinished work of other programs, in the background.
package sweeper

import (
	"context"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

const (
	// maxInterval is the time between two sweeps if nothing falls due earlier.
	maxInterval = time.Minute
	// minInterval is the shortest time between two sweeps without a call of Wake. Something
	// that is due may have to wait for another program.
	minInterval = 100 * time.Millisecond
)

// A Sweeper calls a function at once, when Wake is called, when something falls due, and at least
// once a minute.
type Sweeper struct {
	wake    chan struct{}
	quit    context.CancelFunc
	running sync.WaitGroup
}

// New returns a Sweeper that does nothing until Start is called.
func New() *Sweeper { return &Sweeper{wake: make(chan struct{}, 1)} }

// Start begins to call sweep in the background. sweep does what is due, until its ctx ends, and
// returns the time at which something falls due next, or zero if it does not know. The caller must
// call Close.
func (s *Sweeper) Start(sweep func(ctx context.Context) (due time.Time)) {
	ctx, quit := context.WithCancel(context.Background())
	s.quit = quit
	s.running.Go(func() {
		for ctx.Err() == nil {
			pause := maxInterval
			if due := sweep(ctx); !due.IsZero() {
				pause = min(maxInterval, max(minInterval, time.Until(due)))
			}
			select {
			case <-ctx.Done():
			case <-s.wake:
			case <-time.After(pause):
			}
		}
	})
}

// Wake requests a sweep soon, because there may be something new that falls due. It does not block.
func (s *Sweeper) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close cancels the context of a running sweep and waits for it. No sweep follows.
func (s *Sweeper) Close() {
	s.quit()
	s.running.Wait()
}

// RemovalTime returns the time at which a sandbox falls due for removal, from its status and its Spec, or zero
// if that is unknown. idle reports whether the sandbox was stopped because it was idle.
func RemovalTime(st *atoll.Status, idle bool) time.Time {
	due := st.Expires
	switch {
	case st.Stopped.IsZero():
		return due
	case st.Spec.IdleRemove && idle:
		return Earlier(due, st.Stopped)
	case st.Spec.AutoRemove:
		return Earlier(due, st.Stopped.Add(atoll.AutoRemoveDelay))
	}
	return due
}

// Earlier returns the earlier of two times. A zero time means never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
