// Package sweeper removes expired sandboxes, and what other programs left unfinished, in
// the background.
package sweeper

import (
	"context"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

const (
	// every is how often there is a sweep if nothing is known to be due before that.
	every = time.Minute
	// least is the least time between two sweeps that nobody asked for: what is due may
	// wait for somebody else.
	least = 100 * time.Millisecond
)

// A Sweeper sweeps at once, then whenever it is roused, when something falls due, and
// each minute.
type Sweeper struct {
	wake chan struct{}
	quit context.CancelFunc
	runs sync.WaitGroup
}

// New makes a Sweeper that does nothing until it is started.
func New() *Sweeper { return &Sweeper{wake: make(chan struct{}, 1)} }

// Start begins to sweep, in the background. sweep does what is due, until its ctx ends,
// and returns when to come again; zero means that it does not know. The caller has to
// Close it.
func (s *Sweeper) Start(sweep func(ctx context.Context) (due time.Time)) {
	ctx, quit := context.WithCancel(context.Background())
	s.quit = quit
	s.runs.Go(func() {
		for ctx.Err() == nil {
			pause := every
			if due := sweep(ctx); !due.IsZero() {
				pause = min(every, max(least, time.Until(due)))
			}
			select {
			case <-ctx.Done():
			case <-s.wake:
			case <-time.After(pause):
			}
		}
	})
}

// Rouse has it sweep soon: there is something whose time it does not know yet. It does
// not block.
func (s *Sweeper) Rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close returns when the sweep that is on, if any, has ended, whose ctx it ends. There is
// none afterwards.
func (s *Sweeper) Close() {
	s.quit()
	s.runs.Wait()
}

// Due is when a sandbox's time is over, as its status and its Spec say; zero means that
// it is not known. idle says that it was stopped because nobody used it.
func Due(st *atoll.Status, idle bool) time.Time {
	due := st.Expires
	switch {
	case st.Stopped.IsZero():
		return due
	case st.Spec.IdleRemove && idle:
		return Sooner(due, st.Stopped)
	case st.Spec.AutoRemove:
		return Sooner(due, st.Stopped.Add(atoll.AutoRemoveLinger))
	}
	return due
}

// Sooner is the earlier of two times, of which zero is never.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
