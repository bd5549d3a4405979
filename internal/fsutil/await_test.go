package fsutil

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestAwaitLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := AwaitLock(t.Context(), path)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() {
		_, err := AwaitLock(ctx, path)
		gaveUp <- err
	}()
	select {
	case err := <-gaveUp:
		t.Fatalf("it did not wait for the holder of the lock: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	cancel()
	if err := <-gaveUp; err != context.Canceled {
		t.Errorf("with a context that ended: %v, want that", err)
	}
	held.Release()
	if l, err := AwaitLock(ctx, path); err != nil { // a free lock needs no wait
		t.Errorf("a free lock, with a context that has ended: %v", err)
	} else {
		l.Release()
	}
	if _, err := AwaitLock(t.Context(), filepath.Join(path, "below a file")); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("below a file: %v", err)
	}
}

// All waiters get the lock, one at a time.
func TestAwaitLockIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var all sync.WaitGroup
	var holders atomic.Int32
	for range 16 {
		all.Go(func() {
			for range 5 {
				l, err := AwaitLock(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				if holders.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				holders.Add(-1)
				if err := l.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
