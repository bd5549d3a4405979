package usernet

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A connTable holds the open TCP connections of a network.
type connTable struct {
	mu  sync.Mutex
	set map[*openConn]struct{} // guarded by mu
}

// An openConn is a connection in the table.
type openConn struct {
	used atomic.Int64           // time of the last data, Unix nanoseconds
	end  atomic.Pointer[func()] // resets the connection, and does not block; nil while it is dialled

	check atomic.Pointer[func() bool] // reports whether the policy lets it go on; nil while it is dialled
}

// markUsed records that the connection carries data now.
func (c *openConn) markUsed() { c.used.Store(time.Now().UnixNano()) }

// addConn adds a connection. At the limit, it ends the one that was silent longest, if for at least idle; else it returns nil.
func (t *connTable) addConn(limit int, idle time.Duration) *openConn {
	c := &openConn{}
	c.markUsed()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.set) >= limit && !t.endIdlest(time.Now().Add(-idle)) {
		return nil
	}
	if t.set == nil {
		t.set = map[*openConn]struct{}{}
	}
	t.set[c] = struct{}{}
	return c
}

// endIdlest ends the connection that was silent longest, if it was so since the given time. The caller holds mu.
func (t *connTable) endIdlest(since time.Time) bool {
	var idlest *openConn
	for c := range t.set {
		if c.end.Load() != nil && (idlest == nil || c.used.Load() < idlest.used.Load()) {
			idlest = c
		}
	}
	if idlest == nil || idlest.used.Load() > since.UnixNano() {
		return false
	}
	delete(t.set, idlest)
	(*idlest.end.Load())()
	return true
}

// endRefused ends the connections that must not go on.
func (t *connTable) endRefused() {
	t.mu.Lock()
	all := slices.Collect(maps.Keys(t.set))
	t.mu.Unlock()
	for _, c := range all {
		if check, end := c.check.Load(), c.end.Load(); check != nil && end != nil && !(*check)() {
			(*end)()
		}
	}
}

// removeConn removes a connection that has ended.
func (t *connTable) removeConn(c *openConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.set, c)
}

// countConns returns the number of open connections.
func (t *connTable) countConns() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.set)
}
