package filesync_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// A countingBucket counts requests.
type countingBucket struct {
	objectstore.Bucket
	mu         sync.Mutex
	gets, puts int
}

func (c *countingBucket) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
	c.mu.Lock()
	c.gets++
	c.mu.Unlock()
	return c.Bucket.Get(ctx, key, offset, length)
}

func (c *countingBucket) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	c.mu.Lock()
	c.puts++
	c.mu.Unlock()
	return c.Bucket.Put(ctx, key, r, size, when)
}

// Pushes and pulls of many files make few consecutive requests: each costs a round
// trip.
func TestRequests(t *testing.T) {
	b := &countingBucket{Bucket: openBucket(t)}
	r := newRemote(t, b, filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	past := time.Now().Add(-time.Hour)
	for i := range 100 {
		name := fmt.Sprintf("dir/file %d", i)
		p.writeText(name, fmt.Sprint(i))
		if err := os.Chtimes(p.filePath(name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitTick()
	p.push(r) // also checks the conditions
	for _, test := range []struct {
		what       string
		do         func()
		gets, puts int
	}{
		{"a push of nothing new", func() { p.push(r) }, 1, 0},                       // the marker
		{"a push of one file", func() { p.writeText("one", "1"); p.push(r) }, 2, 4}, // marker, state; lock, object, state, marker
		{"the first pull", func() { q.pull(r, filesync.PullOptions{}) }, 4, 0},      // marker, state; two objects
		{"a pull of nothing new", func() { q.pull(r, filesync.PullOptions{}) }, 2, 0},
	} {
		b.gets, b.puts = 0, 0
		test.do()
		if b.gets != test.gets || b.puts != test.puts {
			t.Errorf("%s: got %d gets and %d puts, want %d and %d", test.what, b.gets, b.puts, test.gets, test.puts)
		}
	}
}
