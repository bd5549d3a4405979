package fsutil

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	_, err := TryLockExisting(path)
	wantErr(t, "try a lock that is not there", err, fs.ErrNotExist)
	_, err = TryShareExisting(path)
	wantErr(t, "look at a lock that is not there", err, fs.ErrNotExist)
	l, err := TryLock(path)
	must(t, err)
	_, err = TryLock(path)
	wantErr(t, "try a lock that is held", err, ErrLocked)
	_, err = TryShareExisting(path)
	wantErr(t, "look at a lock that is held", err, ErrLocked)
	_, err = TryLockExisting(path)
	wantErr(t, "try a lock that is held", err, ErrLocked)
	got := make(chan *Lock)
	go func() {
		l, err := WaitLock(path)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	l.Release()
	l = <-got
	_, err = TryLock(path)
	wantErr(t, "try a lock that was waited for", err, ErrLocked)
	l.Release()
	l, err = TryShareExisting(path)
	must(t, err)
	another, err := TryShareExisting(path)
	must(t, err)
	_, err = TryLock(path)
	wantErr(t, "try a lock with a shared holder", err, ErrLocked)
	another.Release()
	must(t, l.Remove())
	if fileExists(path) {
		t.Error("the file is still there")
	}
	(*Lock)(nil).Release()
	_, err = TryLock(filepath.Join(path, "in no directory"))
	wantErr(t, "lock in no directory", err, fs.ErrNotExist)
}

// A lock has one holder at a time, though each removes the file at the end.
func TestRemovedLocksGuardNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var all sync.WaitGroup
	var holders, rounds atomic.Int32
	for range 8 {
		all.Go(func() {
			for n := 0; n < 50; {
				l, err := TryLock(path)
				if errors.Is(err, ErrLocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if holders.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				rounds.Add(1)
				holders.Add(-1)
				n++
				if err := l.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := rounds.Load(); got != 8*50 {
		t.Errorf("%d rounds, want %d", got, 8*50)
	}
}
