package filesync_test

import (
	"context"
	"io"
	"path"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// A deniedFS denies access to some files and directories.
type deniedFS struct {
	atoll.FS
	names map[string]bool // relative to the directory
}

func (c deniedFS) Sub(dir string) atoll.FS { return deniedFS{atoll.SubFiles(c.FS, dir), c.names} }

func (c deniedFS) denyAccess(op, name string) error { return atoll.E(op, name, atoll.ErrDenied, nil) }

func (c deniedFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	if c.names[path.Clean(name)] {
		return nil, atoll.FileInfo{}, c.denyAccess("read", name)
	}
	return c.FS.Read(ctx, name, offset)
}

func (c deniedFS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	name = strings.TrimPrefix(path.Clean(name), "/work/")
	if c.names[name] || recursive && len(c.names) > 0 {
		return nil, c.denyAccess("list", name)
	}
	return c.FS.List(ctx, name, recursive)
}

func (c deniedFS) Remove(ctx context.Context, name string, recursive bool) error {
	if c.names[path.Clean(name)] {
		return c.denyAccess("remove", name)
	}
	return c.FS.Remove(ctx, name, recursive)
}

// Files without access are reported each time, and keep their state of the version
// before; everything else is synced.
func TestClosed(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	for _, name := range []string{"file", "dir/file", "dir/below/file", "other", "sub/file"} {
		p.writeText(name, "1")
	}
	p.push(r)
	q.pull(r, filesync.PullOptions{})
	p.writeText("file", "22")
	p.writeText("new", "22")
	p.writeText("other", "22")
	p.writeText("dir/file", "22")
	p.writeText("sub/file", "22")
	p.Tree.FS = deniedFS{p.Tree.FS, map[string]bool{"file": true, "new": true, "dir": true}}
	for range 2 {
		st := p.push(r)
		if st.Failed < 1 || len(st.Errors) != st.Failed || !strings.Contains(strings.Join(st.Errors, "\n"), "dir: ") {
			t.Errorf("Push: %+v", st)
		}
	}
	st, err := r.Status(t.Context(), p.Tree)
	if err != nil || strings.Join(st.Unread.Paths, " ") != "dir" || st.Removed.Count > 0 {
		t.Errorf("Status: %+v, %v", st, err)
	}
	if q.pull(r, filesync.PullOptions{}); q.readText("file") != "1" || q.readText("dir/file") != "1" || q.readText("dir/below/file") != "1" || q.readText("other") != "22" || q.readText("sub/file") != "22" {
		t.Errorf("there are %q, %q, %q, %q", q.readText("file"), q.readText("dir/file"), q.readText("other"), q.readText("sub/file"))
	}
	if !strings.Contains(q.readText("new"), "no such file") {
		t.Error("new has come, which nobody could read")
	}

	// A pull leaves files alone that it cannot read or remove.
	q.writeText("dir/file", "333")
	q.writeText("other", "333")
	q.removeFile("sub")
	q.push(r)
	p.Tree.FS = deniedFS{p.Tree.FS.(deniedFS).FS, map[string]bool{"dir": true, "sub/file": true}}
	got := p.pull(r, filesync.PullOptions{})
	if got.Failed < 2 || p.readText("dir/file") != "22" || p.readText("other") != "333" || p.readText("sub/file") != "22" {
		t.Errorf("Pull: %+v; there are %q, %q, %q", got, p.readText("dir/file"), p.readText("other"), p.readText("sub/file"))
	}
	p.Tree.FS = p.Tree.FS.(deniedFS).FS
	if got := p.pull(r, filesync.PullOptions{}); got.Failed > 0 || p.readText("dir/file") != "22" {
		t.Errorf("Pull: %+v; dir/file is %q, as it was changed here", got, p.readText("dir/file"))
	}
}

// An unsorted state file of another program works as well as ours.
func TestForeignStateFile(t *testing.T) {
	b := openBucket(t)
	r := newRemote(t, b, filesync.Options{})
	p := newPlace(t)
	putText(t, b, "5/.sandbox-state", `{"version":"1.0","last_synced_at":5,"files":[`+entryOf("b")+","+entryOf("a")+`]}`)
	putText(t, b, "5/a", "x")
	putText(t, b, "5/b", "x")
	p.pull(r, filesync.PullOptions{Version: 5})
	p.writeText(filesync.StateName, `{"last_synced_at":1704067200,"files":[`+entryOf("gone")+","+entryOf("b")+","+entryOf("a")+`],"version":"1.0"}`)
	p.writeText("a", "changed")
	st, err := r.Status(t.Context(), p.Tree)
	if err != nil || strings.Join(st.Changed.Paths, " ") != "a" || strings.Join(st.Removed.Paths, " ") != "gone" || st.Added.Count > 0 {
		t.Errorf("Status: %+v, %v", st, err)
	}
	q := newPlace(t)
	p.push(r)
	q.pull(r, filesync.PullOptions{})
	checkEqual(t, p, q)
}

// A hangingFS ends a Write of the state file only when its context ends.
type hangingFS struct {
	atoll.FS
	began chan struct{}
}

func (h hangingFS) Sub(dir string) atoll.FS { return hangingFS{atoll.SubFiles(h.FS, dir), h.began} }

func (h hangingFS) Write(ctx context.Context, name string, r io.Reader, o atoll.WriteOptions) (atoll.FileInfo, error) {
	if name != filesync.StateName {
		return h.FS.Write(ctx, name, r, o)
	}
	close(h.began)
	<-ctx.Done()
	return atoll.FileInfo{}, ctx.Err()
}

// A sandbox that has stopped answering doesn't hold up a caller whose context has
// ended.
func TestStateFileHangs(t *testing.T) {
	for _, verb := range []string{"push", "pull"} {
		t.Run(verb, func(t *testing.T) {
			b := openBucket(t)
			r := newRemote(t, b, filesync.Options{}.WithExpire(expire))
			p := newPlace(t)
			p.writeText("file", "1")
			p.push(r)
			p.writeText("file", "22")
			ctx, cancel := context.WithCancel(t.Context())
			h := hangingFS{p.FS, make(chan struct{})}
			go func() {
				<-h.began
				cancel()
			}()
			var err error
			if verb == "push" {
				_, err = r.Push(ctx, filesync.Tree{FS: h, Dir: p.Dir}, filesync.PushOptions{})
			} else {
				_, err = r.Pull(ctx, filesync.Tree{FS: h, Dir: p.Dir}, filesync.PullOptions{})
			}
			if err == nil || !strings.Contains(err.Error(), "everything is synced, but the directory") {
				t.Errorf("%s: %v", verb, err)
			}
		})
	}
}

// Rules that are too long are refused, not truncated.
func TestLongRules(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p := newPlace(t)
	p.writeText("file", "1")
	p.writeText(filesync.IgnoreName, strings.Repeat("# no rule at all\n", 5000))
	if _, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{}); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "64 KiB") {
		t.Errorf("Push: %v, want one that says how long they may be", err)
	}
}
