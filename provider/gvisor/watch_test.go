//go:build linux

package gvisor_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A watcher does not hold up a supervisor that ends.
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
	const tries, cutOff = 5, 1900 * time.Millisecond // a supervisor waits for 2 s before it cuts off a connection
	stop := func(sb atoll.Sandbox) time.Duration {
		begun := time.Now()
		l.Must("stop", sb.Stop(l.Context(), 0))
		return time.Since(begun)
	}
	watched, alone := time.Hour, time.Duration(0) // the fastest stops with a watcher, and without one
	for i := 0; i < tries && watched > alone+cutOff; i++ {
		sb := l.NewSandbox(atoll.Spec{})
		for id := ""; id != sb.ID(); {
			id = <-running
		}
		watched = min(watched, stop(sb))
		if watched > cutOff { // the machine may be slow: compare with a stop that nobody watches
			took := stop(newLab(t).NewSandbox(atoll.Spec{}))
			if alone == 0 || took < alone {
				alone = took
			}
		}
	}
	if watched > alone+cutOff {
		t.Errorf("with a watcher, a stop takes at least %v, and %v without", watched, alone)
	}
}
