package filesync_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

func TestStatus(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	p.writeText("changes", "1")
	p.writeText("goes", "1")
	p.writeText("stays", "1")
	status := func(p *testDir) *filesync.Status {
		t.Helper()
		st, err := r.Status(t.Context(), p.Tree, "*.log")
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	if st := status(p); st.Latest != 0 || st.Behind || !st.Synced.IsZero() || st.Added.Count != 3 {
		t.Errorf("before the first push: %+v", st)
	}
	version := p.push(r).Version
	q.pull(r, filesync.PullOptions{})
	if st := status(q); st.Latest != version || st.Behind || st.Synced.IsZero() || st.Added.Count+st.Changed.Count+st.Removed.Count > 0 {
		t.Errorf("after a pull: %+v", st)
	}
	q.writeText("changes", "22")
	q.removeFile("goes")
	q.writeText("new", "1")
	q.writeText("new.log", "1")
	p.writeText("stays", "22")
	p.push(r)
	st := status(q)
	if got := fmt.Sprint(st.Behind, st.Added.Paths, st.Changed.Paths, st.Removed.Paths, st.Unread.Paths); got != "true [new] [changes] [goes] []" {
		t.Errorf("after changes on both sides: %s", got)
	}
	for i := range filesync.MaxErrors + 5 {
		q.writeText(fmt.Sprint("many/", i), "")
	}
	if st := status(q); st.Added.Count != filesync.MaxErrors+7 || len(st.Added.Paths) != filesync.MaxErrors {
		t.Errorf("of many there are %d, and %d paths", st.Added.Count, len(st.Added.Paths))
	}
}

// Compare follows the specified comparison.
func TestCompare(t *testing.T) {
	state := func(files ...string) *filesync.State { // "path sum"
		s := &filesync.State{}
		for _, text := range files {
			path, sum, _ := strings.Cut(text, " ")
			s.Files = append(s.Files, filesync.File{Path: path, Checksum: filesync.MD5{sum[0]}, Size: 1})
		}
		return s
	}
	paths := func(files []filesync.File) (all []string) {
		for _, f := range files {
			all = append(all, f.Path)
		}
		return all
	}
	for _, tt := range []struct {
		local, remote *filesync.State
		want          string // to download, delete, skip
	}{
		{nil, nil, "[] [] []"},
		{nil, state("a 1", "b 2"), "[a b] [] []"},
		{state("a 1", "b 2"), nil, "[] [a b] []"},
		{state("a 1"), state("a 1"), "[] [] [a]"},
		{state("a 1"), state("a 2"), "[a] [] []"},
		{state("a 1", "b 1", "c 1"), state("b 2", "c 1", "d 1"), "[b d] [a] [c]"},
		{state(), state(), "[] [] []"},
	} {
		d := filesync.Compare(tt.local, tt.remote)
		if got := fmt.Sprint(paths(d.Download), d.Delete, paths(d.Skip)); got != tt.want {
			t.Errorf("Compare(%v, %v) = %s, want %s", tt.local, tt.remote, got, tt.want)
		}
	}
}

// A pull reports a damaged latest version; a push replaces it.
func TestDamagedVersion(t *testing.T) {
	for _, text := range []string{"", "no JSON", `{"version":"1.0","files":[]}`, `{"version":"9.0","files":[]}`} {
		b := openBucket(t)
		var log strings.Builder
		r := newRemote(t, b, filesync.Options{Log: textLog(&log)})
		p := newPlace(t)
		p.writeText("file", "1")
		p.writeText("big", strings.Repeat("x", 300<<10))
		old := p.push(r).Version
		putText(t, b, fmt.Sprint(old, "/.sandbox-state"), text)
		q := newPlace(t)
		_, err := r.Pull(t.Context(), q.Tree, filesync.PullOptions{})
		if want := text != ""; err == nil || errors.Is(err, filesync.ErrDamaged) != want {
			t.Errorf("%q: Pull: %v", text, err)
		}
		if _, err := r.Prune(t.Context(), filesync.Keep{}); text != "" && text[0] != '{' && err == nil {
			t.Errorf("%q: a prune that cannot tell what is needed was done", text)
		}
		p.writeText("file", "2")
		if st := p.push(r); st.Version <= old {
			t.Errorf("%q: version %d after %d", text, st.Version, old)
		}
		if !strings.Contains(log.String(), "pushing all files again") {
			t.Errorf("%q: the log has %s", text, log.String())
		}
		q.pull(r, filesync.PullOptions{})
		checkEqual(t, p, q)
	}
	b := openBucket(t)
	putText(t, b, "latest", "nothing")
	p := newPlace(t)
	_, err := newRemote(t, b, filesync.Options{}).Push(t.Context(), p.Tree, filesync.PushOptions{})
	if atoll.KindOf(err) != atoll.ErrInternal || !strings.Contains(err.Error(), "remove it; the next push creates it again") {
		t.Errorf("Push: %v", err)
	}
}

// A pull reports damaged content, and doesn't write the file.
func TestDamagedBytes(t *testing.T) {
	store := t.TempDir()
	b := openStore(t, store)
	r := newRemote(t, b, filesync.Options{})
	p := newPlace(t)
	p.writeText("good", strings.Repeat("g", 300<<10))
	p.writeText("wrong", strings.Repeat("w", 301<<10))
	p.push(r)
	for _, key := range objectKeys(t, store) {
		if o, err := b.Stat(t.Context(), key); err == nil && o.Size == 301<<10 {
			text := strings.Repeat("x", 301<<10)
			if _, err := b.Put(t.Context(), key, strings.NewReader(text), int64(len(text)), objectstore.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	q := newPlace(t)
	st := q.pull(r, filesync.PullOptions{})
	if st.Failed != 1 || !strings.Contains(st.Errors[0], "wrong: content in the bucket is damaged") || st.FilesDownloaded != 1 {
		t.Errorf("Pull: %+v", st)
	}
	if got := q.readText("wrong"); !strings.Contains(got, "no such file") {
		t.Errorf("wrong is there: %.20s", got)
	}
}

// A file that differs from the pulled version only by its time is unchanged.
func TestStatusAfterTouch(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	p.writeText("touched", "1")
	p.writeText("other", "1")
	p.push(r)
	q.pull(r, filesync.PullOptions{})
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(p.filePath("touched"), past, past); err != nil {
		t.Fatal(err)
	}
	p.writeText("other", "22")
	p.push(r)
	q.pull(r, filesync.PullOptions{})
	st, err := r.Status(t.Context(), q.Tree)
	if err != nil || st.Changed.Count > 0 {
		t.Errorf("Status: %+v, %v, want nothing that has changed", st, err)
	}
}

// A readOnlyFS refuses all writes.
type readOnlyFS struct{ atoll.FS }

func (f readOnlyFS) Sub(dir string) atoll.FS { return readOnlyFS{atoll.SubFiles(f.FS, dir)} }

func (readOnlyFS) Write(_ context.Context, name string, _ io.Reader, _ atoll.WriteOptions) (atoll.FileInfo, error) {
	return atoll.FileInfo{}, atoll.E("write", name, atoll.ErrDenied, nil)
}

// Status writes nothing.
func TestStatusWritesNothing(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p := newPlace(t)
	p.writeText("file", "1")
	p.push(r)
	p.writeText("file", "22")
	st, err := r.Status(t.Context(), filesync.Tree{FS: readOnlyFS{p.FS}, Dir: p.Dir})
	if err != nil || strings.Join(st.Changed.Paths, " ") != "file" {
		t.Errorf("Status: %+v, %v, want that the file has changed", st, err)
	}
}
