package filesync_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// Without the marker, no prune removes content of versions, and the next push creates
// it again, with a greater number than theirs.
func TestMarkerGone(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"": 0, "clock behind": time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := openBucket(t)
			now := time.Now()
			was := map[int64]string{}
			p := newPlace(t)
			early := newRemote(t, b, filesync.Options{}.WithNow(func() time.Time { return now.Add(ahead) }))
			for i := range 3 {
				p.writeText("file", fmt.Sprint(i))
				p.writeText("big", strings.Repeat(fmt.Sprint(i), 300<<10))
				was[p.push(early).Version] = p.content()
			}
			last := newestVersion(t, early)
			if err := b.Delete(t.Context(), prefix+"/latest"); err != nil {
				t.Fatal(err)
			}
			r := newRemote(t, b, filesync.Options{}.WithNow(func() time.Time { return now }))
			if _, err := r.Prune(t.Context(), filesync.Keep{Last: 1}); atoll.KindOf(err) != atoll.ErrInternal || !strings.Contains(err.Error(), "push") {
				t.Errorf("Prune: %v, want one that says to push", err)
			}
			p.writeText("file", "after")
			st := p.push(r)
			if st.Version <= last {
				t.Errorf("version %d after %d", st.Version, last)
			}
			was[st.Version] = p.content()
			if _, err := r.Prune(t.Context(), filesync.Keep{}); err != nil {
				t.Errorf("Prune: %v", err)
			}
			for version, want := range was {
				q := newPlace(t)
				if st, err := r.Pull(t.Context(), q.Tree, filesync.PullOptions{Version: version}); err != nil || st.Failed > 0 || q.content() != want {
					t.Errorf("version %d: %+v, %v: %s", version, st, err, firstDifference(want, q.content()))
				}
			}
		})
	}
}

// A markerBucket calls hooks when the marker is written or read.
type markerBucket struct {
	objectstore.Bucket
	put func(now string, do func() error) error // now is the content to write
	get func() error
}

func (b *markerBucket) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (o objectstore.Object, err error) {
	if key != prefix+"/latest" {
		return b.Bucket.Put(ctx, key, r, size, when)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return o, err
	}
	err = b.put(string(text), func() (err error) {
		o, err = b.Bucket.Put(ctx, key, strings.NewReader(string(text)), size, when)
		return err
	})
	return o, err
}

func (b *markerBucket) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
	if key == prefix+"/latest" && b.get != nil {
		if err := b.get(); err != nil {
			return nil, objectstore.Object{}, err
		}
	}
	return b.Bucket.Get(ctx, key, offset, length)
}

// A push succeeds although the answer to its last write was lost, and another has begun
// before it could check.
func TestCommitUnanswered(t *testing.T) {
	b := openBucket(t)
	p, q := newPlace(t), newPlace(t)
	locked, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	quick := newRemote(t, b, filesync.Options{}.WithStep(func(name string) {
		if name == "locked" {
			close(locked)
			<-goOn
		}
	}))
	r := newRemote(t, &markerBucket{Bucket: b, put: func(now string, do func() error) error {
		err := do()
		if err != nil || strings.Contains(now, `"lock"`) {
			return err
		}
		q.writeText("file", "of another")
		go func() {
			_, err := quick.Push(t.Context(), q.Tree, filesync.PushOptions{})
			done <- err
		}()
		<-locked
		return atoll.E("put", "", atoll.ErrConflict, nil) // as a service that was asked twice
	}}, filesync.Options{})
	p.writeText("file", "mine")
	st, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{})
	if err != nil || st.Version != newestVersion(t, r) {
		t.Errorf("Push: %+v, %v; the latest version is %d", st, err, newestVersion(t, r))
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("the other push: %v", err)
	}
}

// A holder that renewed its lock without an answer still holds it.
func TestRenewalUnanswered(t *testing.T) {
	b := openBucket(t)
	p := newPlace(t)
	p.writeText("file", "1")
	p.push(newRemote(t, b, filesync.Options{}))
	p.writeText("file", "22")
	var mu sync.Mutex
	n := 0
	lost := make(chan struct{})
	m := &markerBucket{Bucket: b, put: func(_ string, do func() error) error {
		mu.Lock()
		defer mu.Unlock()
		n++
		err := do()
		if n == 2 && err == nil { // after the lock
			err = atoll.E("put", "", atoll.ErrUnavailable, nil)
		}
		return err
	}, get: func() error {
		mu.Lock()
		defer mu.Unlock()
		if n == 2 {
			n++
			close(lost)
			return atoll.E("get", "", atoll.ErrUnavailable, nil)
		}
		return nil
	}}
	lasting := max(6*time.Second, testenv.Scale(3*time.Second)) // until a busy machine renews the lock
	r := newRemote(t, m, filesync.Options{}.WithExpire(lasting).WithStep(func(name string) {
		if name == "object" {
			<-lost
		}
	}))
	if st, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{}); err != nil || st.Version != newestVersion(t, r) {
		t.Errorf("Push: %+v, %v; the latest version is %d", st, err, newestVersion(t, r))
	}
}

// A push that was stopped for days writes nothing that looks like a version, although
// others have pruned the void file in its place.
func TestStoppedForDays(t *testing.T) {
	b := openBucket(t)
	const days = 72 * time.Hour
	var away atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(away.Load())) }
	held, goOn := make(chan struct{}), make(chan struct{})
	slow := newRemote(t, b, filesync.Options{}.WithNow(clock).WithExpire(time.Hour).WithStep(func(name string) {
		if name == "object" {
			close(held)
			<-goOn
		}
	}))
	p, q := newPlace(t), newPlace(t)
	p.writeText("of", "the slow one")
	done := make(chan error)
	go func() {
		_, err := slow.Push(t.Context(), p.Tree, filesync.PushOptions{})
		done <- err
	}()
	<-held
	away.Store(int64(days))
	quick := newRemote(t, b, filesync.Options{}.WithNow(clock))
	q.writeText("of", "the quick one")
	want := q.push(quick).Version
	if _, err := quick.Prune(t.Context(), filesync.Keep{}); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-done; !errors.Is(err, filesync.ErrLost) {
		t.Errorf("the slow push: %v, want %v", err, filesync.ErrLost)
	}
	for v, err := range quick.Versions(t.Context()) {
		if err != nil || v.Version != want {
			t.Errorf("there is version %d, %v; want %d alone", v.Version, err, want)
		}
	}
}
