package fakemodal

import (
	"context"
	"sync"
	"time"
)

// usage knows when a sandbox was last in use: a command runs in it, something is
// written to its stdin, or a connection to one of its tunnels is open.
type usage struct {
	mu      sync.Mutex
	users   int
	last    time.Time
	changed chan struct{} // has one element after a change
}

func newUsage() *usage { return &usage{last: time.Now(), changed: make(chan struct{}, 1)} }

// beginUse notes that somebody uses the sandbox, until what it returns is called.
func (u *usage) beginUse() (end func()) {
	u.addUsers(1)
	return sync.OnceFunc(func() { u.addUsers(-1) })
}

// markUse notes a use that is over at once.
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

// waitIdle returns true when there was no use for so long, or false when ctx ends.
func (u *usage) waitIdle(ctx context.Context, limit time.Duration) bool {
	u.markUse() // it begins now
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
