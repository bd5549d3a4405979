package filesync_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

func newPlaceWithSetID(t testing.TB) *testDir { return placeWithSetIDAt(t, t.TempDir()) }

// placeWithSetIDAt is placeAt for a file system that sets set-user-ID bits.
func placeWithSetIDAt(t testing.TB, dir string) *testDir {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("there are no such bits")
	}
	f, err := dirfs.New("/work", dir, dirfs.Options{UID: -1, GID: -1, SetID: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &testDir{t, dir, filesync.Tree{FS: f, Dir: "/work"}}
}

// mode returns the permission bits of a file.
func (p *testDir) mode(name string) uint32 {
	p.t.Helper()
	fi, err := p.FS.Stat(p.t.Context(), "/work/"+name)
	if err != nil {
		p.t.Fatal(err)
	}
	return fi.Mode
}

// awaitTick waits until a new file gets a time that no earlier change can have.
func (p *testDir) awaitTick() {
	p.t.Helper()
	name := filepath.Join(p.t.TempDir(), "clock")
	modified := func() time.Time {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			p.t.Fatal(err)
		}
		fi, err := os.Stat(name)
		if err != nil {
			p.t.Fatal(err)
		}
		return fi.ModTime()
	}
	for begin := modified(); modified().Sub(begin) < 25*time.Millisecond; time.Sleep(time.Millisecond) {
	}
}

// Same size and same time do not hide a change: neither an edit, nor another file in its
// place, nor an edit right after a push.
func TestChangedWithSameTime(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows tells only the time that programs can set")
	}
	past := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	write := func(p *testDir, name, text string) {
		p.writeText(name, text)
		if err := os.Chtimes(p.filePath(name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		what string
		wait bool
		edit func(p *testDir)
	}{
		{"edit", true, func(p *testDir) { write(p, "f", "bbbb") }},
		{"edit at once", false, func(p *testDir) { write(p, "f", "bbbb") }},
		{"replacement", true, func(p *testDir) {
			if err := os.Rename(p.filePath("g"), p.filePath("f")); err != nil {
				t.Fatal(err)
			}
		}},
		{"replacement at once", false, func(p *testDir) {
			if err := os.Rename(p.filePath("g"), p.filePath("f")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		for _, after := range []string{"push", "pull"} {
			t.Run(test.what+" after "+after, func(t *testing.T) {
				r := newRemote(t, openBucket(t), filesync.Options{})
				p := newPlace(t)
				write(p, "f", "aaaa")
				write(p, "g", "bbbb")
				p.push(r)
				if after == "pull" {
					p = newPlace(t)
					p.pull(r, filesync.PullOptions{})
				}
				if test.wait {
					p.awaitTick()
					p.push(r)
				}
				test.edit(p)
				if st := p.status(r); fmt.Sprint(st.Changed.Paths) != "[f]" {
					t.Errorf("Status: %+v, want f", st)
				}
				p.push(r)
				q := newPlace(t)
				q.pull(r, filesync.PullOptions{})
				if got := q.readText("f"); got != "bbbb" {
					t.Errorf("the version has %q", got)
				}
				checkEqual(t, p, q)
			})
		}
	}
}

// A readCountingFS counts the reads of files other than those of Atoll.
type readCountingFS struct {
	atoll.FS
	reads *atomic.Int64
}

func (f readCountingFS) Sub(dir string) atoll.FS {
	return readCountingFS{atoll.SubFiles(f.FS, dir), f.reads}
}

func (f readCountingFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	if name != filesync.StateName && name != filesync.IgnoreName {
		f.reads.Add(1)
	}
	return f.FS.Read(ctx, name, offset)
}

// Unchanged files are not read again: neither after a push nor after a pull, whatever
// else is pushed or pulled meanwhile.
func TestUnchangedFilesAreNotRead(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	a, b := newPlace(t), newPlace(t)
	var reads atomic.Int64
	a.FS, b.FS = readCountingFS{a.FS, &reads}, readCountingFS{b.FS, &reads}
	for i := range 50 {
		a.writeText(fmt.Sprintf("dir/file %d", i), strings.Repeat("x", i))
	}
	a.awaitTick()
	a.push(r)
	b.pull(r, filesync.PullOptions{})
	b.awaitTick()
	b.push(r) // settles the files that the pull wrote within the last tick of the clock
	for _, step := range []struct {
		what string
		do   func()
		most int64
	}{
		{"push", func() { a.push(r) }, 0},
		{"status", func() { a.status(r); b.status(r) }, 0},
		{"push of a new file", func() { a.writeText("one", "1"); a.awaitTick(); a.push(r) }, 1},
		{"pull of it", func() { b.pull(r, filesync.PullOptions{}) }, 0},
		{"push after the pull", func() { b.awaitTick(); b.push(r) }, 1}, // written within the last tick
		{"push of nothing", func() { b.push(r) }, 0},
		{"pull of nothing", func() { b.pull(r, filesync.PullOptions{}); a.pull(r, filesync.PullOptions{}) }, 0},
		{"push after that", func() { a.push(r); b.push(r) }, 0},
	} {
		reads.Store(0)
		if step.do(); reads.Load() > step.most {
			t.Errorf("%s: reads %d files, want at most %d", step.what, reads.Load(), step.most)
		}
	}
}

// A file whose time alone has changed is no change.
func TestStatusReadsTouchedFiles(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p := newPlace(t)
	p.writeText("touched", "1")
	p.push(r)
	if err := os.Chtimes(p.filePath("touched"), time.Now(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if st := p.status(r); st.Changed.Count > 0 {
		t.Errorf("Status: %+v, want no change", st)
	}
}

// A modelessFS keeps no modes, as those of Windows and FAT.
type modelessFS struct{ atoll.FS }

func (f modelessFS) Sub(dir string) atoll.FS { return modelessFS{atoll.SubFiles(f.FS, dir)} }

func (f modelessFS) Write(ctx context.Context, name string, r io.Reader, o atoll.WriteOptions) (atoll.FileInfo, error) {
	fi, err := f.FS.Write(ctx, name, r, o)
	fi.Mode = 0o777
	return fi, err
}

func (f modelessFS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	all, err := f.FS.List(ctx, name, recursive)
	for i := range all {
		all[i].Mode = 0o777
	}
	return all, err
}

// Where the file system keeps no modes, they are no changes, and a push retains those of
// the version.
func TestNoModes(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	a, b := newPlace(t), newPlace(t)
	a.writeText("program", "1")
	a.writeText("text", "1")
	if err := os.Chmod(a.filePath("program"), 0o750); err != nil {
		t.Fatal(err)
	}
	a.push(r)
	b.FS = modelessFS{b.FS}
	b.pull(r, filesync.PullOptions{})
	if st := b.status(r); st.Changed.Count > 0 {
		t.Errorf("Status: %+v, want no change", st)
	}
	b.writeText("program", "2")
	b.writeText("new", "1")
	b.push(r)
	a.pull(r, filesync.PullOptions{})
	for name, want := range map[string]uint32{"program": 0o750, "text": 0o644, "new": 0o644} {
		if got := a.mode(name); got != want {
			t.Errorf("%s has the mode %o, want %o", name, got, want)
		}
	}
	if a.readText("program") != "2" {
		t.Errorf("program holds %q", a.readText("program"))
	}
}
