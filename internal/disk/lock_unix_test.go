//go:build unix

package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
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
	wantErr(t, "try a lock that is looked at", err, ErrLocked)
	another.Release()
	must(t, l.Remove())
	if exists(path) {
		t.Error("the file is still there")
	}
	(*Lock)(nil).Release()
	_, err = TryLock(filepath.Join(path, "in no directory"))
	wantErr(t, "lock in no directory", err, fs.ErrNotExist)
}

// A lock is free when it is released, though a descriptor is left to a child on
// its way to its own program.
func TestReleasedBeforeChildren(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryLock(path)
	must(t, err)
	child := dup(t, l.file)
	defer child.Close()
	l.Release()
	l, err = TryLock(path)
	must(t, err)
	l.Release()
}

// A lock on what was opened before can be shared, lies on directories too, ends
// when all have closed it, and is refused on what is elsewhere by now.
func TestFlock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	must(t, os.Mkdir(dir, 0o700))
	open := func() *os.File {
		f, err := os.Open(dir)
		must(t, err)
		return f
	}
	one, two, other := open(), open(), open()
	child := dup(t, two)
	must(t, Flock(one, syscall.LOCK_SH|syscall.LOCK_NB))
	must(t, Flock(two, syscall.LOCK_SH|syscall.LOCK_NB))
	for _, f := range []*os.File{one, two, child} {
		wantErr(t, "try a lock that is shared", Flock(other, syscall.LOCK_EX|syscall.LOCK_NB), ErrLocked)
		f.Close()
	}
	must(t, Flock(other, syscall.LOCK_EX|syscall.LOCK_NB))
	other.Close()
	for _, replace := range []bool{false, true} {
		f := open()
		must(t, os.Rename(dir, dir+" elsewhere"))
		if replace {
			must(t, os.Mkdir(dir, 0o700))
		}
		wantErr(t, "lock what is elsewhere", Flock(f, syscall.LOCK_EX), fs.ErrNotExist)
		f.Close()
		must(t, os.RemoveAll(dir))
		must(t, os.Rename(dir+" elsewhere", dir))
	}
}

// Whoever holds a lock is alone, though each removes the file when he is done.
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

func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := syscall.Dup(int(f.Fd()))
	must(t, err)
	return os.NewFile(uintptr(fd), "child")
}
