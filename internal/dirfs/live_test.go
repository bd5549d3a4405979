//go:build unix

package dirfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A liveFS records which names its programs see change, or fails every change.
type liveFS struct {
	*FS
	seen   []string
	broken bool
}

var errBroken = errors.New("suspended")

func (l *liveFS) Rename(ctx context.Context, from, to string) error {
	if l.broken {
		return errBroken
	}
	l.seen = append(l.seen, to)
	return l.FS.Rename(ctx, from, to)
}

func (l *liveFS) Link(ctx context.Context, from, to string) error {
	if l.broken {
		return errBroken
	}
	l.seen = append(l.seen, to)
	return l.FS.Link(ctx, from, to)
}

func (l *liveFS) Change(ctx context.Context, name string, change atoll.FileChange) error {
	l.seen = append(l.seen, name)
	return l.FS.Change(ctx, name, change)
}

// Write and ReadTar have a live tree give files their names, and do without if that fails.
func TestLive(t *testing.T) {
	dir := t.TempDir()
	for _, broken := range []bool{false, true} {
		open := func(live atoll.FS) *FS {
			f, err := New("/in", dir, Options{UID: -1, GID: -1, Live: live})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		}
		live := &liveFS{FS: open(nil), broken: broken}
		f := open(live)
		mustWrite(t, f, "made/new", "1", atoll.WriteOptions{})
		mustWrite(t, f, "made/new", "2", atoll.WriteOptions{})
		mustWrite(t, f, "only", "3", atoll.WriteOptions{NoClobber: true})
		if _, err := f.Write(t.Context(), "only", strings.NewReader("4"), atoll.WriteOptions{NoClobber: true}); !errors.Is(err, atoll.ErrAlreadyExists) {
			t.Errorf("Write over a file with NoClobber: %v", err)
		}
		archive := archiveOf(t, regularHeader("x/unpacked"), symlinkHeader("l", "x"), regularHeader("x/next"))
		if err := f.ReadTar(t.Context(), "made", bytes.NewReader(archive)); err != nil {
			t.Fatal(err)
		}
		want := []string{"/in/made/new", "/in/made/new", "/in/only", "/in/made/x/unpacked", "/in/made/l", "/in/made/x/next"}
		if broken {
			want = nil
		}
		if !slices.Equal(live.seen, want) {
			t.Errorf("broken %v: events of %q, want %q", broken, live.seen, want)
		}
		var names []string
		if err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
			if rel, _ := filepath.Rel(dir, name); !d.IsDir() {
				names = append(names, rel)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"made/l", "made/new", "made/x/next", "made/x/unpacked", "only"}; !slices.Equal(names, want) {
			t.Errorf("broken %v: files %q, want %q", broken, names, want)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "made/new")); string(data) != "2" || err != nil {
			t.Errorf("broken %v: %q, %v", broken, data, err)
		}
		if err := os.Remove(filepath.Join(dir, "only")); err != nil {
			t.Fatal(err)
		}
	}
}

// A long stream makes events of its first entries, and then of its directories.
func TestLiveOfLongStream(t *testing.T) {
	dir := t.TempDir()
	inner, err := New("/in", dir, Options{UID: -1, GID: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	live := &liveFS{FS: inner}
	f, err := New("/in", dir, Options{UID: -1, GID: -1, Live: live})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	headers := []*tar.Header{{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755}}
	for i := range 3 * maxLive {
		headers = append(headers, regularHeader(fmt.Sprintf("d/%d", i)))
	}
	if err := f.ReadTar(t.Context(), ".", bytes.NewReader(archiveOf(t, headers...))); err != nil {
		t.Fatal(err)
	}
	if n := len(live.seen); n != maxLive+1 || live.seen[n-1] != "/in/d" {
		t.Errorf("%d events, the last of %v", n, live.seen[n-1])
	}
}
