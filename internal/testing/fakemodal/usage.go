package fakemodal

import (
	"context"
	"sync"
	"time"
)

// usage tracks when a sandbox was last in use: a command runs, a caller writes to its stdin, or a
// connection to one of its tunnels is open.
type usage struct {
	mu      sync.Mutex
	users   int
	last    time.Time
	changed chan struct{} // capacity 1; has an element after a change
}

func newUsage() *usage { return &usage{last: time.Now(), changed: make(chan struct{}, 1)} }

// beginUse marks the sandbox as in use until the caller calls end.
func (u *usage) beginUse() (end func()) {
	u.addUsers(1)
	return sync.OnceFunc(func() { u.addUsers(-1) })
}

// markUse records a use of no duration.
func (u *usage) markUse() { u.addUsers(0) }

func (u *usage) addUsers(n int) {
	u.mu.Lock()
	u.users += n
	u.last = time.Now()
	u.mu.Unlock()
	select {
	case u.changed <- struct{}{}:
	default:
	}
}

// waitIdle returns true after the sandbox has been idle for limit, or false when ctx ends.
func (u *usage) waitIdle(ctx context.Context, limit time.Duration) bool {
	u.markUse() // the idle time begins now
	for {
		u.mu.Lock()
		left := time.Until(u.last.Add(limit))
		if u.users > 0 {
			left = limit
		} else if left <= 0 {
			u.mu.Unlock()
			return true
		}
		u.mu.Unlock()
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-u.changed:
		case <-ctx.Done():
			t.Stop()
			return false
		}
		t.Stop()
	}
}
