package filesync_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// A cord is a bucket whose connection is cut after some calls. The last call may or may
// not have succeeded, and reads end too early. A cord that doesn't heal simulates a
// killed program, except for the files it leaves open.
type cord struct {
	objectstore.Bucket
	left  atomic.Int64 // remaining calls
	done  bool         // the last call succeeds
	heals bool         // later calls succeed
}

var errCut = atoll.E("bucket", "", atoll.ErrUnavailable, errors.New("the connection is cut"))

func (c *cord) nextCall() (last, cut bool) {
	left := c.left.Add(-1)
	return left == 0, left < 0 && !c.heals
}

func (c *cord) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
	last, cut := c.nextCall()
	if cut {
		return nil, objectstore.Object{}, errCut
	}
	body, o, err := c.Bucket.Get(ctx, key, offset, length)
	if err == nil && last {
		body = &tornReader{ReadCloser: body, left: o.Size / 2}
	}
	return body, o, err
}

func (c *cord) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	last, cut := c.nextCall()
	if cut || last && !c.done {
		return objectstore.Object{}, errCut
	}
	o, err := c.Bucket.Put(ctx, key, r, size, when)
	if err == nil && last {
		return objectstore.Object{}, errCut
	}
	return o, err
}

func (c *cord) Delete(ctx context.Context, keys ...string) error {
	last, cut := c.nextCall()
	if cut {
		return errCut
	}
	if last {
		keys = keys[:len(keys)/2]
	}
	if err := c.Bucket.Delete(ctx, keys...); err != nil || !last {
		return err
	}
	return errCut
}

func (c *cord) List(ctx context.Context, prefix string) iter.Seq2[objectstore.Object, error] {
	if last, cut := c.nextCall(); last || cut {
		return func(yield func(objectstore.Object, error) bool) { yield(objectstore.Object{}, errCut) }
	}
	return c.Bucket.List(ctx, prefix)
}

// A tornReader fails half way.
type tornReader struct {
	io.ReadCloser
	left int64
}

func (t *tornReader) Read(p []byte) (int, error) {
	if t.left <= 0 {
		return 0, errCut
	}
	n, err := t.ReadCloser.Read(p[:min(int64(len(p)), t.left)])
	t.left -= int64(n)
	return n, err
}

// fileEntries returns the files and links in a result of content, by path.
func fileEntries(content string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(content) {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			panic(err)
		}
		if rest := line[len(quoted):]; !strings.HasPrefix(rest, " d") {
			all[quoted] = rest
		}
	}
	return all
}

// A world has a bucket and two directories, both of which are edited.
type world struct {
	t       *testing.T
	rnd     *rand.Rand
	store   objectstore.Bucket
	remote  *filesync.Remote
	was     map[int64]string // content of versions
	last    int64
	editors [2]*editor
	steps   []string
}

// An editor is a directory with the files that it is known to share with the versions.
type editor struct {
	*testDir
	base map[string]string
}

// editedFiles returns the files changed in the directory since.
func (e *editor) editedFiles() map[string]string {
	mine := map[string]string{}
	for path, is := range fileEntries(e.content()) {
		if e.base[path] != is {
			mine[path] = is
		}
	}
	return mine
}

// cutRemote returns the remote through a connection that may be cut after some calls.
func (w *world) cutRemote() *filesync.Remote {
	c := &cord{Bucket: w.store, done: w.rnd.IntN(2) == 0, heals: w.rnd.IntN(2) == 0}
	c.left.Store(1 << 40)
	if w.rnd.IntN(3) > 0 {
		c.left.Store(w.rnd.Int64N(14))
	}
	return newRemote(w.t, c, filesync.Options{}.WithExpire(20*time.Millisecond))
}

// push pushes, and records the latest version.
func (w *world) push(e *editor) {
	content := e.content()
	st, err := w.cutRemote().Push(w.t.Context(), e.Tree, filesync.PushOptions{})
	w.steps = append(w.steps, fmt.Sprint("push ", err))
	now := newestVersion(w.t, w.remote)
	switch {
	case err != nil && atoll.KindOf(err) != atoll.ErrUnavailable:
		w.t.Errorf("Push: %v", err)
	case err == nil && st.Version != now:
		w.t.Errorf("Push: version %d, and %d is the latest", st.Version, now)
	case err == nil:
		e.base = fileEntries(content)
	}
	if now < w.last {
		w.t.Errorf("version %d after %d", now, w.last)
	}
	if old, ok := w.was[now]; ok && err == nil && old != content {
		w.t.Errorf("version %d: %s", now, firstDifference(old, content))
	}
	if now != w.last {
		w.was[now] = content
		w.last = now
	}
}

// pull pulls, and checks that edited files are unchanged.
func (w *world) pull(e *editor) {
	mine := e.editedFiles()
	st, err := w.cutRemote().Pull(w.t.Context(), e.Tree, filesync.PullOptions{})
	w.steps = append(w.steps, fmt.Sprint("pull ", err))
	content := e.content()
	now := fileEntries(content)
	for path, was := range mine {
		if now[path] != was {
			w.t.Errorf("%s was edited here, and the pull has made it %.80q of %.80q", path, now[path], was)
		}
	}
	if err != nil {
		if atoll.KindOf(err) != atoll.ErrUnavailable {
			w.t.Errorf("Pull: %v", err)
		}
		return
	}
	version := fileEntries(w.was[st.Version])
	for path, is := range now {
		if was, edited := mine[path]; !edited || version[path] == was {
			e.base[path] = is
		}
	}
}

// checkVersion checks that a version can be pulled.
func (w *world) checkVersion(version int64) {
	fresh := newPlace(w.t)
	st, err := w.remote.Pull(w.t.Context(), fresh.Tree, filesync.PullOptions{Version: version})
	if err != nil || st.Failed > 0 || len(st.Conflicts) > 0 {
		w.t.Errorf("version %d: %+v, %v", version, st, err)
	}
	if got := fresh.content(); got != w.was[version] {
		w.t.Errorf("version %d: %s", version, firstDifference(w.was[version], got))
	}
}

// Whatever both sides edit, and wherever pushes, pulls and prunes are interrupted, the
// last completed version and all before it can be pulled, bit for bit, and no pull
// changes edited files.
func TestInterrupted(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	t.Run("directory", func(t *testing.T) { testInterrupted(t, rounds, openBucket) })
	t.Run("versitygw", func(t *testing.T) { testInterrupted(t, max(rounds/10, 1), openVersity) })
}

func testInterrupted(t *testing.T, rounds int, open func(testing.TB) objectstore.Bucket) {
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 4)), store: open(t), was: map[int64]string{}}
			w.remote = newRemote(t, w.store, filesync.Options{}.WithExpire(20*time.Millisecond))
			for i := range w.editors {
				w.editors[i] = &editor{newPlace(t), map[string]string{}}
			}
			for range 25 {
				e := w.editors[w.rnd.IntN(2)]
				switch w.rnd.IntN(7) {
				case 0, 1:
					for range w.rnd.IntN(6) {
						e.editFile(w.rnd)
					}
				case 2, 3:
					w.push(e)
				case 4, 5:
					w.pull(e)
				case 6:
					_, err := w.cutRemote().Prune(t.Context(), filesync.Keep{})
					w.steps = append(w.steps, fmt.Sprint("prune ", err))
				}
				if w.last > 0 {
					w.checkVersion(w.last)
				}
				if t.Failed() {
					t.Fatalf("after\n%s", strings.Join(w.steps, "\n"))
				}
			}
			for version := range w.was {
				if version > 0 {
					w.checkVersion(version)
				}
			}
		})
	}
}
