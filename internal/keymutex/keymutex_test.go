package keymutex

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestLocks(t *testing.T) {
	var l Locks
	unlock, ok := l.Try("a")
	if !ok {
		t.Fatal("a new lock is taken")
	}
	if _, ok := l.Try("a"); ok {
		t.Error("a lock was taken twice")
	}
	other, err := l.Lock(t.Context(), "b")
	if err != nil {
		t.Errorf("Lock of another name: %v", err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock with a context that has ended: %v", err)
	}
	unlock()
	unlock()
	if len(l.held) != 0 {
		t.Errorf("%d locks are remembered", len(l.held))
	}
}

// One goroutine at a time has a lock, however many want it.
func TestMany(t *testing.T) {
	var l Locks
	var all sync.WaitGroup
	n := 0
	for range 50 {
		all.Go(func() {
			unlock, err := l.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			n++
		})
	}
	all.Wait()
	if n != 50 {
		t.Errorf("%d of 50 had it alone", n)
	}
}
