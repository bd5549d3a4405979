package filesync_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// errFault is the error of a failing call.
var errFault = atoll.Errorf("fault", "", atoll.ErrUnavailable, "no way there")

// A fault makes only the nth of the calls that ask it fail.
type fault struct {
	at    int64
	calls atomic.Int64
}

func (f *fault) countCall() error {
	if f.calls.Add(1) == f.at {
		return errFault
	}
	return nil
}

// wasReached reports whether there were as many calls.
func (f *fault) wasReached() bool { return f.calls.Load() >= f.at }

// A faultyBucket fails in one call, or while one object is read.
type faultyBucket struct {
	objectstore.Bucket
	*fault
}

func (b faultyBucket) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
	if err := b.countCall(); err != nil {
		return nil, objectstore.Object{}, err
	}
	r, o, err := b.Bucket.Get(ctx, key, offset, length)
	if err == nil && b.countCall() != nil {
		r = brokenReader{r}
	}
	return r, o, err
}

// A brokenReader fails at once.
type brokenReader struct{ io.Closer }

func (brokenReader) Read([]byte) (int, error) { return 0, errFault }

func (b faultyBucket) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	if err := b.countCall(); err != nil {
		return objectstore.Object{}, err
	}
	o, err := b.Bucket.Put(ctx, key, r, size, when)
	if err == nil && b.countCall() != nil {
		return objectstore.Object{}, errFault // the answer was lost
	}
	return o, err
}

func (b faultyBucket) Stat(ctx context.Context, key string) (objectstore.Object, error) {
	if err := b.countCall(); err != nil {
		return objectstore.Object{}, err
	}
	return b.Bucket.Stat(ctx, key)
}

func (b faultyBucket) List(ctx context.Context, prefix string) iter.Seq2[objectstore.Object, error] {
	if err := b.countCall(); err != nil {
		return func(yield func(objectstore.Object, error) bool) { yield(objectstore.Object{}, err) }
	}
	return b.Bucket.List(ctx, prefix)
}

func (b faultyBucket) Delete(ctx context.Context, keys ...string) error {
	if err := b.countCall(); err != nil {
		return err
	}
	return b.Bucket.Delete(ctx, keys...)
}

// A faultyFS fails in one call.
type faultyFS struct {
	atoll.FS
	*fault
}

func (f faultyFS) Sub(dir string) atoll.FS { return faultyFS{atoll.SubFiles(f.FS, dir), f.fault} }

func (f faultyFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	if err := f.countCall(); err != nil {
		return nil, atoll.FileInfo{}, err
	}
	return f.FS.Read(ctx, name, offset)
}

func (f faultyFS) Write(ctx context.Context, name string, r io.Reader, o atoll.WriteOptions) (atoll.FileInfo, error) {
	if err := f.countCall(); err != nil {
		return atoll.FileInfo{}, err
	}
	return f.FS.Write(ctx, name, r, o)
}

func (f faultyFS) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	if err := f.countCall(); err != nil {
		return atoll.FileInfo{}, err
	}
	return f.FS.Stat(ctx, name)
}

func (f faultyFS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	if err := f.countCall(); err != nil {
		return nil, err
	}
	return f.FS.List(ctx, name, recursive)
}

func (f faultyFS) Mkdir(ctx context.Context, name string, mode uint32) error {
	if err := f.countCall(); err != nil {
		return err
	}
	return f.FS.Mkdir(ctx, name, mode)
}

func (f faultyFS) Rename(ctx context.Context, from, to string) error {
	if err := f.countCall(); err != nil {
		return err
	}
	return f.FS.Rename(ctx, from, to)
}

func (f faultyFS) Remove(ctx context.Context, name string, recursive bool) error {
	if err := f.countCall(); err != nil {
		return err
	}
	return f.FS.Remove(ctx, name, recursive)
}

func (f faultyFS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	if err := f.countCall(); err != nil {
		return err
	}
	return f.FS.WriteTar(ctx, name, w)
}

func (f faultyFS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	if err := f.countCall(); err != nil {
		return err
	}
	return f.FS.ReadTar(ctx, name, r)
}

// Whichever call fails, existing versions stay intact, no file is lost, and the next
// attempt does what the failed one should have done.
func TestEachFault(t *testing.T) {
	// Locks of failed calls expire soon, and less than a second passes between two
	// pushes.
	now := time.Now()
	brief := filesync.Options{}.WithExpire(time.Second).WithNow(func() time.Time { return now })
	type attempt func(ctx context.Context, r *filesync.Remote, tree filesync.Tree) error
	push := func(ctx context.Context, r *filesync.Remote, tree filesync.Tree) error {
		_, err := r.Push(ctx, tree, filesync.PushOptions{})
		return err
	}
	pull := func(ctx context.Context, r *filesync.Remote, tree filesync.Tree) error {
		_, err := r.Pull(ctx, tree, filesync.PullOptions{})
		return err
	}
	for _, tt := range []struct {
		name  string
		do    attempt
		check func(t *testing.T, b objectstore.Bucket, here *testDir, was string)
	}{
		{"push", push, func(t *testing.T, b objectstore.Bucket, here *testDir, was string) {
			r, q := newRemote(t, b, brief), newPlace(t)
			q.pull(r, filesync.PullOptions{})
			if got := q.content(); got != was && got != here.content() {
				t.Errorf("the latest version is neither the one before nor the new one:\n%s", firstDifference(was, got))
			}
			here.push(r)
			q.pull(r, filesync.PullOptions{})
			checkEqual(t, here, q)
		}},
		{"pull", pull, func(t *testing.T, b objectstore.Bucket, here *testDir, was string) {
			r, q := newRemote(t, b, brief), newPlace(t)
			q.pull(r, filesync.PullOptions{})
			if q.content() != was {
				t.Errorf("the version has changed:\n%s", firstDifference(was, q.content()))
			}
			here.pull(r, filesync.PullOptions{Conflicts: filesync.KeepRemote})
			if here.readText("untracked") != "mine" {
				t.Errorf("a file that was never pushed is %q", here.readText("untracked"))
			}
			here.removeFile("untracked")
			checkEqual(t, here, q)
		}},
		{"prune", func(ctx context.Context, r *filesync.Remote, _ filesync.Tree) error {
			_, err := r.Prune(ctx, filesync.Keep{Last: 1})
			return err
		}, func(t *testing.T, b objectstore.Bucket, _ *testDir, was string) {
			r, q := newRemote(t, b, brief), newPlace(t)
			q.pull(r, filesync.PullOptions{})
			if q.content() != was {
				t.Errorf("the latest version has changed:\n%s", firstDifference(was, q.content()))
			}
			if _, err := r.Prune(t.Context(), filesync.Keep{Last: 1}); err != nil {
				t.Errorf("the next prune: %v", err)
			}
			n := 0
			for _, err := range r.Versions(t.Context()) {
				if err != nil {
					t.Error(err)
				}
				n++
			}
			if n != 1 {
				t.Errorf("%d versions are left, want 1", n)
			}
		}},
		{"status", func(ctx context.Context, r *filesync.Remote, tree filesync.Tree) error {
			_, err := r.Status(ctx, tree)
			return err
		}, func(t *testing.T, b objectstore.Bucket, here *testDir, was string) {}},
		{"files", func(ctx context.Context, r *filesync.Remote, _ filesync.Tree) error {
			for _, err := range r.Files(ctx, 0) {
				if err != nil {
					return err
				}
			}
			return nil
		}, func(t *testing.T, b objectstore.Bucket, here *testDir, was string) {}},
		{"open", func(ctx context.Context, r *filesync.Remote, _ filesync.Tree) error {
			in, _, err := r.Open(ctx, 0, "dir/new", 1<<20)
			if err == nil {
				_, err = io.Copy(io.Discard, in)
				in.Close()
			}
			return err
		}, func(t *testing.T, b objectstore.Bucket, here *testDir, was string) {}},
		{"versions", func(ctx context.Context, r *filesync.Remote, _ filesync.Tree) error {
			for _, err := range r.Versions(ctx) {
				if err != nil {
					return err
				}
			}
			return nil
		}, func(t *testing.T, b objectstore.Bucket, here *testDir, was string) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for at := int64(1); ; at++ {
				b := openBucket(t)
				r, maker, here := newRemote(t, b, brief), newPlace(t), newPlace(t)
				maker.writeText("a", "one")
				maker.writeText("dir/b", "one")
				maker.writeText("gone/c", "one")
				maker.writeText(filesync.IgnoreName, "*.tmp\n")
				maker.push(r)
				here.pull(r, filesync.PullOptions{})
				maker.writeText("a", "a longer one")
				maker.writeText("dir/new", strings.Repeat("new", 1000))
				maker.removeFile("gone")
				maker.push(r)
				was := maker.content()
				if tt.name == "pull" {
					here.writeText("untracked", "mine")
				} else {
					here = maker
					here.writeText("dir/b", "two, and longer")
					here.writeText("later", "later")
				}
				f := &fault{at: at}
				err := tt.do(t.Context(), newRemote(t, faultyBucket{b, f}, brief), filesync.Tree{FS: faultyFS{here.FS, f}, Dir: here.Dir})
				if !f.wasReached() {
					if err != nil {
						t.Errorf("without a fault: %v", err)
					}
					if at < 3 {
						t.Errorf("only %d calls", f.calls.Load())
					}
					return
				}
				if err != nil && !errors.Is(err, atoll.ErrUnavailable) {
					t.Errorf("call %d fails: %v, want the bucket's or the file system's error", at, err)
				}
				tt.check(t, b, here, was)
				if t.Failed() {
					t.Fatalf("that was with call %d failing", at)
				}
			}
		})
	}
}

// A closedListFS cannot list everything at once, nor one directory.
type closedListFS struct {
	atoll.FS
	closed string
	kind   atoll.Kind
}

func (f closedListFS) Sub(dir string) atoll.FS {
	return closedListFS{atoll.SubFiles(f.FS, dir), f.closed, f.kind}
}

func (f closedListFS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	if recursive || name == f.closed {
		return nil, atoll.E("list", name, f.kind, nil)
	}
	return f.FS.List(ctx, name, recursive)
}

// Files in a directory that cannot be listed stay in the version.
func TestClosedDirectory(t *testing.T) {
	r, p := newRemote(t, openBucket(t), filesync.Options{}), newPlace(t)
	p.writeText("open/a", "one")
	p.writeText("closed/b", "one")
	p.push(r)
	was := p.readText("closed/b")
	p.writeText("open/a", "two, and longer")
	closed := filesync.Tree{FS: closedListFS{p.FS, "closed", atoll.ErrDenied}, Dir: p.Dir}
	st, err := r.Push(t.Context(), closed, filesync.PushOptions{})
	if err != nil || st.Failed != 1 || len(st.Errors) != 1 || !strings.HasPrefix(st.Errors[0], "closed: ") {
		t.Errorf("Push: %+v, %v; want one error, of the directory", st, err)
	}
	if st, err := r.Status(t.Context(), closed); err != nil || !slices.Equal(st.Unread.Paths, []string{"closed"}) || st.Removed.Count > 0 {
		t.Errorf("Status: %+v, %v", st, err)
	}
	q := newPlace(t)
	q.pull(r, filesync.PullOptions{})
	if q.readText("closed/b") != was || q.readText("open/a") != "two, and longer" {
		t.Errorf("closed/b is %q, open/a %q", q.readText("closed/b"), q.readText("open/a"))
	}
	checkEqual(t, p, q)
	// If a recursive list is too long, directories are listed one by one.
	many := filesync.Tree{FS: closedListFS{p.FS, "", atoll.ErrExhausted}, Dir: p.Dir}
	if st, err := r.Push(t.Context(), many, filesync.PushOptions{}); err != nil || st.Failed > 0 {
		t.Errorf("Push: %+v, %v", st, err)
	}
	if _, err := r.Push(t.Context(), filesync.Tree{FS: closedListFS{p.FS, ".", atoll.ErrDenied}, Dir: p.Dir}, filesync.PushOptions{}); !errors.Is(err, atoll.ErrDenied) {
		t.Errorf("of a directory that is closed itself: %v, want denied", err)
	}
}

// A damaged latest version cannot be pulled, and a push replaces all of it.
func TestDamagedVersionIsNotRead(t *testing.T) {
	for name, text := range map[string]string{
		"other bytes":    `{"version":"1.0","last_synced_at":1,"files":[]}`,
		"no state file":  "garbage",
		"not whole":      `{"version":"1.0","sorted":true,"files":[`,
		"nothing":        "",
		"another format": `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			b := openBucket(t)
			r, p, q := newRemote(t, b, filesync.Options{}), newPlace(t), newPlace(t)
			p.writeText("a", "one")
			v := p.push(r).Version
			putText(t, b, strconv.FormatInt(v, 10)+"/"+filesync.StateName, text)
			want := error(filesync.ErrDamaged)
			if text == "" {
				want = atoll.ErrNotExist
			}
			for verb, err := range map[string]error{
				"Pull": secondResult(r.Pull(t.Context(), q.Tree, filesync.PullOptions{})),
				"Open": thirdResult(r.Open(t.Context(), 0, "a", 10)),
			} {
				if !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", verb, err, want)
				}
			}
			for _, version := range []int64{0, v} {
				for _, err := range r.Files(t.Context(), version) {
					if err == nil || version == 0 && !errors.Is(err, want) {
						t.Errorf("Files(%d): %v, want %v", version, err, want)
					}
				}
			}
			if st := p.push(r); st.Version <= v || st.FilesUploaded != 1 {
				t.Errorf("Push: %+v, want a new version with all of it", st)
			}
			q.pull(r, filesync.PullOptions{})
			checkEqual(t, p, q)
		})
	}
}

func secondResult[T any](_ T, err error) error        { return err }
func thirdResult[T, U any](_ T, _ U, err error) error { return err }

// An unreadableFS cannot read one file.
type unreadableFS struct {
	atoll.FS
	name string
	kind atoll.Kind
}

func (f unreadableFS) Sub(dir string) atoll.FS {
	return unreadableFS{atoll.SubFiles(f.FS, dir), f.name, f.kind}
}

func (f unreadableFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	if name == f.name {
		return nil, atoll.FileInfo{}, atoll.E("read", name, f.kind, nil)
	}
	return f.FS.Read(ctx, name, offset)
}

// An unreadable file keeps its state of the version before; a removed file is removed;
// files of a sandbox that doesn't answer don't count as removed.
func TestUnreadableFile(t *testing.T) {
	for _, tt := range []struct {
		kind   atoll.Kind
		fails  bool
		failed int
		old    string // the old file's content in the new version
	}{
		{atoll.ErrDenied, false, 1, "one"},
		{atoll.ErrInternal, false, 1, "one"},
		{atoll.ErrNotExist, false, 0, ""},
		{atoll.ErrStopped, true, 0, "one"},
		{atoll.ErrUnavailable, true, 0, "one"},
	} {
		for _, name := range []string{"old", "new"} {
			t.Run(string(tt.kind)+" "+name, func(t *testing.T) {
				r, p, q := newRemote(t, openBucket(t), filesync.Options{}), newPlace(t), newPlace(t)
				p.writeText("old", "one")
				p.push(r)
				p.writeText("old", "two, and longer")
				p.writeText("new", strings.Repeat("new", 100))
				st, err := r.Push(t.Context(), filesync.Tree{FS: unreadableFS{p.FS, name, tt.kind}, Dir: p.Dir}, filesync.PushOptions{})
				if tt.fails {
					if !errors.Is(err, tt.kind) {
						t.Errorf("Push: %v, want %v", err, tt.kind)
					}
				} else if err != nil || st.Failed != tt.failed {
					t.Errorf("Push: %+v, %v, want %d that failed", st, err, tt.failed)
				}
				q.pull(r, filesync.PullOptions{})
				old := tt.old
				if name == "new" && !tt.fails {
					old = "two, and longer"
				}
				if got := q.readText("old"); old != "" && got != old || old == "" && !strings.Contains(got, "no such file") {
					t.Errorf("old is %q, want %q", got, old)
				}
				if got := q.readText("new"); strings.HasPrefix(got, "new") != (name == "old" && !tt.fails) {
					t.Errorf("new is %.20q", got)
				}
			})
		}
	}
}
