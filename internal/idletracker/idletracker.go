// Package idletracker tracks when a sandbox was last used.
package idletracker

import (
	"net/http"
	"sync"
	"time"
)

// A Use records when a sandbox was last used from outside. The zero Use was never used.
type Use struct {
	mu    sync.Mutex
	calls int // in progress
	last  time.Time
}

// Counts returns a handler that calls next, and counts each call as use.
func (u *Use) Counts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer u.Begin()()
		next.ServeHTTP(w, r)
	})
}

// Begin begins a use, which lasts until end is called, once.
func (u *Use) Begin() (end func()) {
	u.countCall(1)
	return func() { u.countCall(-1) }
}

func (u *Use) countCall(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls += n
	u.last = time.Now()
}

// Latest returns the time at which the last use ended: now during a use; the zero time if
// there was none.
func (u *Use) Latest() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls > 0 {
		return time.Now()
	}
	return u.last
}

// looksPerLimit is the number of times, within an idle limit, that a watcher looks for
// running processes that no call has started, such as daemons.
const looksPerLimit = 10

// Step returns the time from one look to the next, a minute at most.
func Step(limit time.Duration) time.Duration { return min(limit/looksPerLimit, time.Minute) }
