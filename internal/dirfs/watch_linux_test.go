package dirfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// watchUntil watches while do works, and returns the events up to the one
// about stop, which do has to cause last.
func watchUntil(t *testing.T, f *FS, name string, recursive bool, stop string, do func()) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Second))
	defer cancel()
	var got []string
	for ev, err := range f.Watch(ctx, name, recursive) {
		if err != nil {
			t.Fatalf("Watch: %v, after %q", err, got)
		}
		if ev.Type == atoll.FileSynced {
			go do()
			continue
		}
		if ev.Path == stop {
			return got
		}
		got = append(got, string(ev.Type)+" "+strings.TrimPrefix(ev.Path, "/work/"))
	}
	t.Fatalf("Watch ended without an error, after %q", got)
	return nil
}

func TestWatch(t *testing.T) {
	f, dir, _ := newTree(t)
	mustWrite(t, f, "old/file", "x", atoll.WriteOptions{})
	got := watchUntil(t, f, ".", true, "/work/stop", func() {
		mustWrite(t, f, "new", "x", atoll.WriteOptions{})
		mustWrite(t, f, "old/file", "y", atoll.WriteOptions{})
		if err := os.WriteFile(filepath.Join(dir, "old/file"), []byte("z"), 0); err != nil {
			t.Error(err)
		}
		if err := os.Chmod(filepath.Join(dir, "new"), 0o600); err != nil {
			t.Error(err)
		}
		if err := f.Rename(t.Context(), "new", "old/moved"); err != nil {
			t.Error(err)
		}
		if err := f.Remove(t.Context(), "old/moved", false); err != nil {
			t.Error(err)
		}
		mustWrite(t, f, "stop", "", atoll.WriteOptions{})
	})
	want := "created new, written new, created old/file, written old/file, changed new, removed new, created old/moved, removed old/moved"
	got = slices.Compact(got) // one write may be several events
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("events\n%s, want\n%s", s, want)
	}
}

// The kernel reports unnamed files as "#" and a number, which may also be the name of
// a file.
func TestWatchOfNumbers(t *testing.T) {
	f, _, _ := newTree(t)
	got := watchUntil(t, f, ".", true, "/work/stop", func() {
		mustWrite(t, f, "#123", "x", atoll.WriteOptions{})
		if err := f.Remove(t.Context(), "#123", false); err != nil {
			t.Error(err)
		}
		mustWrite(t, f, "stop", "", atoll.WriteOptions{})
	})
	if want := []string{"created #123", "written #123", "removed #123"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

func TestWatchNewDirectories(t *testing.T) {
	f, _, _ := newTree(t)
	got := watchUntil(t, f, ".", true, "/work/stop", func() {
		mustWrite(t, f, "a/b/c/file", "x", atoll.WriteOptions{})
		if err := f.Rename(t.Context(), "a", "z"); err != nil {
			t.Error(err)
		}
		mustWrite(t, f, "z/b/moved", "x", atoll.WriteOptions{})
		if err := f.Rename(t.Context(), "z", "a"); err != nil {
			t.Error(err)
		}
		mustWrite(t, f, "stop", "", atoll.WriteOptions{})
	})
	all := strings.Join(got, ", ") + ","
	// Events between the creation of a directory and its watch may come from either,
	// so the test checks only the certain ones.
	for _, want := range []string{"created a,", "removed a,", "created z,", "removed z,"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
	got = watchUntil(t, f, ".", true, "/work/a/b/c/stop", func() {
		mustWrite(t, f, "a/b/c/stop", "x", atoll.WriteOptions{})
	})
	if len(got) > 0 {
		t.Errorf("events %q before a write to an old directory", got)
	}
}

func TestWatchFollowsMovedDirectories(t *testing.T) {
	f, _, _ := newTree(t)
	mustWrite(t, f, "a/b/file", "x", atoll.WriteOptions{})
	seen := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Second))
	defer cancel()
	go func() {
		<-seen // the move: from now on the new name counts
		mustWrite(t, f, "z/b/late", "x", atoll.WriteOptions{})
	}()
	for ev, err := range f.Watch(ctx, ".", true) {
		switch {
		case err != nil:
			t.Fatal(err)
		case ev.Type == atoll.FileSynced:
			if err := f.Rename(t.Context(), "a", "z"); err != nil {
				t.Fatal(err)
			}
		case ev.Path == "/work/z/b/file":
			close(seen)
		case strings.HasPrefix(ev.Path, "/work/a/"):
			t.Errorf("an event %+v under the old name", ev)
		case ev.Path == "/work/z/b/late":
			return
		}
	}
}

// The memory of a Watch is bounded, and it forgets directories that no longer exist.
func TestWatchOfTooMuch(t *testing.T) {
	for what, most := range map[string]budget{"entries": {4, maxPaths}, "bytes": {maxEntries, 50}} {
		f, dir, _ := newTree(t)
		f.most = most
		mkdir := func(name string) {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Error(err)
			}
		}
		mkdir("a/b")
		got := watchUntil(t, f, ".", true, "/work/stop", func() {
			for range 10 {
				mkdir("a/c")
				if err := os.Rename(filepath.Join(dir, "a/c"), filepath.Join(dir, "a/d")); err != nil {
					t.Error(err)
				}
				if err := os.Remove(filepath.Join(dir, "a/d")); err != nil {
					t.Error(err)
				}
			}
			mustWrite(t, f, "stop", "", atoll.WriteOptions{})
		})
		if len(got) != 40 { // with two of each rename
			t.Errorf("%s: events %q", what, got)
		}
		ends := func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Second))
			defer cancel()
			for _, err = range f.Watch(ctx, ".", true) {
				mkdir("a/b/c/d")
			}
			return err
		}
		for _, when := range []string{"later", "at first"} {
			if err := ends(); !errors.Is(err, atoll.ErrExhausted) {
				t.Errorf("%s, too much %s: %v, want ErrExhausted", what, when, err)
			}
		}
	}
}

func TestWatchIsNotRecursiveUnlessAsked(t *testing.T) {
	f, _, _ := newTree(t)
	mustWrite(t, f, "sub/file", "x", atoll.WriteOptions{})
	got := watchUntil(t, f, ".", false, "/work/stop", func() {
		mustWrite(t, f, "sub/file", "y", atoll.WriteOptions{})
		mustWrite(t, f, "stop", "", atoll.WriteOptions{})
	})
	if len(got) != 0 {
		t.Errorf("events %q from below", got)
	}
}

func TestWatchEnds(t *testing.T) {
	f, dir, outside := newTree(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range f.Watch(ctx, ".", true) {
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("with its ctx: %v", last)
	}
	mustWrite(t, f, "gone/x", "", atoll.WriteOptions{})
	for ev, err := range f.Watch(t.Context(), "gone", true) {
		if last = err; ev.Type == atoll.FileSynced {
			if err := f.Remove(t.Context(), "gone", true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !errors.Is(last, atoll.ErrNotExist) {
		t.Errorf("when the directory is removed: %v, want ErrNotExist", last)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	got := watchUntil(t, f, ".", true, "/work/stop", func() {
		if err := os.WriteFile(filepath.Join(outside, "new"), nil, 0o644); err != nil {
			t.Error(err)
		}
		mustWrite(t, f, "stop", "", atoll.WriteOptions{})
	})
	if len(got) != 0 {
		t.Errorf("events %q from outside", got)
	}
}
