// Package idletracker tracks when a sandbox was last used.
package idletracker

import (
	"net/http"
	"sync"
	"time"
)

// A Use tells when a sandbox was last used from outside. The zero Use never was.
type Use struct {
	mu    sync.Mutex
	calls int // in progress
	last  time.Time
}

// Counts returns a handler that does what next does, and counts as use.
func (u *Use) Counts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer u.Begin()()
		next.ServeHTTP(w, r)
	})
}

// Begin counts as use until end is called, once.
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

// Latest is when the last call ended: now while there is one.
func (u *Use) Latest() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls > 0 {
		return time.Now()
	}
	return u.last
}

// looksPerLimit is how often, within a time limit, it is looked whether something runs
// that no call has started, such as a daemon.
const looksPerLimit = 10

// Step is the time from one look to the next, a minute at most.
func Step(limit time.Duration) time.Duration { return min(limit/looksPerLimit, time.Minute) }
