//go:build linux

package gvisor_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Whoever watches does not hold up a keeper that ends.
func TestWatchDoesNotDelay(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	running, done := make(chan string, 10), make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range l.Watch(ctx) {
			if err == nil && ev.Status.State == atoll.StateRunning {
				running <- ev.Status.ID
			}
		}
	}()
	defer func() { cancel(); <-done }()
	const tries, limit = 5, 1900 * time.Millisecond // a keeper waits for 2 s before it cuts off a connection
	fastest := time.Hour
	for i := 0; i < tries && fastest > limit; i++ {
		sb := l.create(atoll.Spec{})
		for id := ""; id != sb.ID(); {
			id = <-running
		}
		begun := time.Now()
		l.must("stop", sb.Stop(l.ctx(), 0))
		fastest = min(fastest, time.Since(begun))
	}
	if fastest > limit {
		t.Errorf("while somebody watches, a stop takes %v at least", fastest)
	}
}
