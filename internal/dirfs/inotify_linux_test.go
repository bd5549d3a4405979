package dirfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// countInotify returns the number of inotify instances of this process.
func countInotify(t *testing.T) (n int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

// All watches of a process share one inotify, as a user has only 128. Each sees its own directory, and no event from
// before it began.
func TestWatchesShareInotify(t *testing.T) {
	const watches = 200
	f, dir, _ := newTree(t)
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := countInotify(t)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(30*time.Second))
	defer cancel()
	var synced, ended sync.WaitGroup
	for i := range watches {
		name, other := "a", "b"
		if i%2 == 1 {
			name, other = other, name
		}
		synced.Add(1)
		ended.Go(func() {
			first := sync.OnceFunc(synced.Done)
			defer first()
			for ev, err := range f.Watch(ctx, name, false) {
				switch {
				case err != nil:
					t.Errorf("watch: %v", err)
					return
				case ev.Type == atoll.FileSynced:
					mustWrite(t, f, other+"/before", "x", atoll.WriteOptions{}) // another watch sees it, unless that begins later
					first()
				case ev.Path == "/work/"+name+"/stop":
					return
				case !strings.HasPrefix(ev.Path, "/work/"+name+"/"):
					t.Errorf("the watch of %s reports %s", name, ev.Path)
				}
			}
		})
	}
	synced.Wait()
	if n := countInotify(t) - before; n != 1 {
		t.Errorf("%d watches have %d instances of inotify, want 1", watches, n)
	}
	mustWrite(t, f, "a/stop", "", atoll.WriteOptions{})
	mustWrite(t, f, "b/stop", "", atoll.WriteOptions{})
	ended.Wait()
	if n := countInotify(t) - before; n != 0 {
		t.Errorf("%d instances of inotify are left", n)
	}
}

func TestWatchBeginsWithNow(t *testing.T) {
	f, _, _ := newTree(t)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(30*time.Second))
	defer cancel()
	for _, err := range f.Watch(ctx, ".", false) { // keeps the directory in the inotify
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, f, "before", "x", atoll.WriteOptions{})
		got := watchUntil(t, f, ".", false, "/work/stop", func() { mustWrite(t, f, "stop", "", atoll.WriteOptions{}) })
		if len(got) > 0 {
			t.Errorf("events from before: %q", got)
		}
		break
	}
}

// A watch leaves directories to others, and ends before it takes all of this user's.
func TestWatchLimits(t *testing.T) {
	f, dir, _ := newTree(t)
	if err := os.MkdirAll(filepath.Join(dir, "a/b/c/d"), 0o755); err != nil {
		t.Fatal(err)
	}
	n, err := acquireInotify(f.roots[1])
	if err != nil {
		t.Fatal(err)
	}
	defer releaseInotify(n, &watch{})
	n.mu.Lock()
	n.perWatch, n.total = 4, 6
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(30*time.Second))
	defer cancel()
	watchErr := func(name string) (err error) {
		for _, err = range f.Watch(ctx, name, true) {
			break
		}
		return err
	}
	if err := watchErr("."); !errors.Is(err, atoll.ErrExhausted) || !strings.Contains(err.Error(), "one watch may have 4, and all together 6") {
		t.Errorf("5 directories: %v", err)
	}
	if err := watchErr("a"); err != nil {
		t.Errorf("4 directories: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "e/f/g"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, err := range f.Watch(ctx, "e", true) { // 3
		if err != nil {
			t.Fatal(err)
		}
		if err := watchErr("a"); !errors.Is(err, atoll.ErrExhausted) {
			t.Errorf("4 more directories: %v", err)
		}
		if err := watchErr("a/b"); err != nil {
			t.Errorf("3 more directories: %v", err)
		}
		break
	}
}

// Equal events that wait for a slow reader are one, as in the kernel.
func TestWatchMergesEqualEvents(t *testing.T) {
	f, dir, _ := newTree(t)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
	defer cancel()
	for ev, err := range f.Watch(ctx, ".", false) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Path == "/work/stop" {
			break
		}
		if ev.Type != atoll.FileSynced {
			continue
		}
		for range 2 * maxQueued {
			if _, err := log.WriteString("x"); err != nil {
				t.Fatal(err)
			}
		}
		mustWrite(t, f, "stop", "", atoll.WriteOptions{})
	}
}

// A reader that is slower than the changes learns that events are missing, after those that are not.
func TestWatchTooSlow(t *testing.T) {
	if text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events"); err != nil || len(text) < len("16384\n") {
		t.Skipf("the kernel's queue is short: %s, %v", text, err)
	}
	f, dir, _ := newTree(t)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
	defer cancel()
	events := 0
	for ev, err := range f.Watch(ctx, ".", false) {
		if err != nil {
			if !errors.Is(err, atoll.ErrUnavailable) || !strings.Contains(err.Error(), "too slow") {
				t.Errorf("after %d events: %v", events, err)
			}
			if events < maxQueued/2 {
				t.Errorf("%d events, want half of %d at least", events, maxQueued)
			}
			return
		}
		if ev.Type != atoll.FileSynced {
			events++
			continue
		}
		for range maxQueued {
			if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(dir, "d")); err != nil {
				t.Fatal(err)
			}
		}
	}
}
