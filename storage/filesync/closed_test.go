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

// closed is a file system of which some files and directories are closed to us.
type closed struct {
	atoll.FS
	names map[string]bool // below the directory
}

func (c closed) Sub(dir string) atoll.FS { return closed{atoll.SubFiles(c.FS, dir), c.names} }

func (c closed) err(op, name string) error { return atoll.E(op, name, atoll.ErrDenied, nil) }

func (c closed) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	if c.names[path.Clean(name)] {
		return nil, atoll.FileInfo{}, c.err("read", name)
	}
	return c.FS.Read(ctx, name, offset)
}

func (c closed) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	name = strings.TrimPrefix(path.Clean(name), "/work/")
	if c.names[name] || recursive && len(c.names) > 0 {
		return nil, c.err("list", name)
	}
	return c.FS.List(ctx, name, recursive)
}

func (c closed) Remove(ctx context.Context, name string, recursive bool) error {
	if c.names[path.Clean(name)] {
		return c.err("remove", name)
	}
	return c.FS.Remove(ctx, name, recursive)
}

// What is closed to us is told, each time, and stays what it was in the version before;
// nothing else is held up.
func TestClosed(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	for _, name := range []string{"file", "dir/file", "dir/below/file", "other", "sub/file"} {
		p.write(name, "1")
	}
	p.push(r)
	q.pull(r, filesync.PullOptions{})
	p.write("file", "22")
	p.write("new", "22")
	p.write("other", "22")
	p.write("dir/file", "22")
	p.write("sub/file", "22")
	p.Tree.FS = closed{p.Tree.FS, map[string]bool{"file": true, "new": true, "dir": true}}
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
	if q.pull(r, filesync.PullOptions{}); q.read("file") != "1" || q.read("dir/file") != "1" || q.read("dir/below/file") != "1" || q.read("other") != "22" || q.read("sub/file") != "22" {
		t.Errorf("there are %q, %q, %q, %q", q.read("file"), q.read("dir/file"), q.read("other"), q.read("sub/file"))
	}
	if !strings.Contains(q.read("new"), "no such file") {
		t.Error("new has come, which nobody could read")
	}

	// A pull leaves alone what it cannot look at, and what it may not remove.
	q.write("dir/file", "333")
	q.write("other", "333")
	q.remove("sub")
	q.push(r)
	p.Tree.FS = closed{p.Tree.FS.(closed).FS, map[string]bool{"dir": true, "sub/file": true}}
	got := p.pull(r, filesync.PullOptions{})
	if got.Failed < 2 || p.read("dir/file") != "22" || p.read("other") != "333" || p.read("sub/file") != "22" {
		t.Errorf("Pull: %+v; there are %q, %q, %q", got, p.read("dir/file"), p.read("other"), p.read("sub/file"))
	}
	p.Tree.FS = p.Tree.FS.(closed).FS
	if got := p.pull(r, filesync.PullOptions{}); got.Failed > 0 || p.read("dir/file") != "22" {
		t.Errorf("Pull: %+v; dir/file is %q, as it was changed here", got, p.read("dir/file"))
	}
}

// A state file of another program, in no order, is as good as ours.
func TestForeignStateFile(t *testing.T) {
	b := openBucket(t)
	r := newRemote(t, b, filesync.Options{})
	p := newPlace(t)
	put(t, b, "5/.sandbox-state", `{"version":"1.0","last_synced_at":5,"files":[`+entry("b")+","+entry("a")+`]}`)
	put(t, b, "5/a", "x")
	put(t, b, "5/b", "x")
	p.pull(r, filesync.PullOptions{Version: 5})
	p.write(filesync.StateName, `{"last_synced_at":1704067200,"files":[`+entry("gone")+","+entry("b")+","+entry("a")+`],"version":"1.0"}`)
	p.write("a", "changed")
	st, err := r.Status(t.Context(), p.Tree)
	if err != nil || strings.Join(st.Changed.Paths, " ") != "a" || strings.Join(st.Removed.Paths, " ") != "gone" || st.Added.Count > 0 {
		t.Errorf("Status: %+v, %v", st, err)
	}
	q := newPlace(t)
	p.push(r)
	q.pull(r, filesync.PullOptions{})
	alike(t, p, q)
}

// hung never ends a Write of the state file, but with its context.
type hung struct {
	atoll.FS
	began chan struct{}
}

func (h hung) Sub(dir string) atoll.FS { return hung{atoll.SubFiles(h.FS, dir), h.began} }

func (h hung) Write(ctx context.Context, name string, r io.Reader, o atoll.WriteOptions) (atoll.FileInfo, error) {
	if name != filesync.StateName {
		return h.FS.Write(ctx, name, r, o)
	}
	close(h.began)
	<-ctx.Done()
	return atoll.FileInfo{}, ctx.Err()
}

// A sandbox that does not answer any more holds nobody who has given up.
func TestStateFileHangs(t *testing.T) {
	for _, verb := range []string{"push", "pull"} {
		t.Run(verb, func(t *testing.T) {
			b := openBucket(t)
			r := newRemote(t, b, filesync.Options{}.WithExpire(expire))
			p := newPlace(t)
			p.write("file", "1")
			p.push(r)
			p.write("file", "22")
			ctx, cancel := context.WithCancel(t.Context())
			h := hung{p.FS, make(chan struct{})}
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
			if err == nil || !strings.Contains(err.Error(), "all is done but for the state file") {
				t.Errorf("%s: %v", verb, err)
			}
		})
	}
}

// Rules that are too long are refused, and not cut into others.
func TestLongRules(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p := newPlace(t)
	p.write("file", "1")
	p.write(filesync.IgnoreName, strings.Repeat("# no rule at all\n", 5000))
	if _, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{}); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "64 KiB") {
		t.Errorf("Push: %v, want one that says how long they may be", err)
	}
}
