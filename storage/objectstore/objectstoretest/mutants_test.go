//go:build unix

package objectstoretest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/objectstore/objectstoretest"
)

// mutantVar names the mutant on which the test binary runs the suite.
const mutantVar = "ATOLL_TEST_MUTANT"

// A mutant is a bucket that breaks a promise.
type mutant struct {
	objectstore.Bucket
	put    func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error)
	get    func(b objectstore.Bucket, ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error)
	list   func(b objectstore.Bucket, ctx context.Context, prefix string) iter.Seq2[objectstore.Object, error]
	remove func(b objectstore.Bucket, ctx context.Context, keys ...string) error
}

func (m mutant) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	if m.put == nil {
		return m.Bucket.Put(ctx, key, r, size, when)
	}
	return m.put(m.Bucket, ctx, key, r, size, when)
}

func (m mutant) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
	if m.get == nil {
		return m.Bucket.Get(ctx, key, offset, length)
	}
	return m.get(m.Bucket, ctx, key, offset, length)
}

func (m mutant) List(ctx context.Context, prefix string) iter.Seq2[objectstore.Object, error] {
	if m.list == nil {
		return m.Bucket.List(ctx, prefix)
	}
	return m.list(m.Bucket, ctx, prefix)
}

func (m mutant) Delete(ctx context.Context, keys ...string) error {
	if m.remove == nil {
		return m.Bucket.Delete(ctx, keys...)
	}
	return m.remove(m.Bucket, ctx, keys...)
}

// The mutants, and the promise that has to find each.
var mutants = map[string]struct {
	mutant
	promise string
}{
	"checks, then writes": {mutant{put: func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
		o, err := b.Stat(ctx, key)
		if when.Absent && err == nil || when.Tag != "" && o.Tag != when.Tag {
			return o, atoll.ErrConflict
		}
		time.Sleep(50 * time.Millisecond) // others check meanwhile
		return b.Put(ctx, key, r, size, objectstore.Condition{})
	}}, "of many concurrent writers of an absent object, one succeeds"},
	"forgets tags": {mutant{put: func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
		when.Tag = ""
		return b.Put(ctx, key, r, size, when)
	}}, "concurrent updates on a tag lose no update"},
	"reads all into memory": {mutant{put: func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
		all, err := io.ReadAll(r)
		if err != nil {
			return objectstore.Object{}, err
		}
		return b.Put(ctx, key, bytes.NewReader(all), size, when)
	}}, "a large object takes little memory"},
	"begins at the beginning": {mutant{put: func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			return objectstore.Object{}, err
		}
		return b.Put(ctx, key, r, size, when)
	}}, "a write starts where its reader stands"},
	"stores half": {mutant{put: func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
		half, err := io.ReadAll(io.LimitReader(r, size))
		if err == nil {
			return b.Put(ctx, key, bytes.NewReader(half), int64(len(half)), when)
		}
		_, _ = b.Put(context.WithoutCancel(ctx), key, bytes.NewReader(half), int64(len(half)), when)
		return objectstore.Object{}, err
	}}, "a reader that fails, or has fewer or more bytes, stores nothing"},
	"goes on after its context": {mutant{put: func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
		return b.Put(context.WithoutCancel(ctx), key, r, size, when)
	}}, "calls with an ended context fail"},
	"reads on when it has returned": {mutant{put: func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
		o, err := b.Put(ctx, key, r, size, when)
		go func() {
			for range 1000 {
				_, _ = r.Read(make([]byte, 1))
			}
		}()
		return o, err
	}}, "a reader is not used when the write has returned"},
	"takes what is cut for the end": {mutant{get: func(b objectstore.Bucket, ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
		r, o, err := b.Get(ctx, key, offset, length)
		if err != nil {
			return nil, o, err
		}
		return lenient{r}, o, nil
	}}, "a read that is cancelled ends"},
	"has only whole objects": {mutant{get: func(b objectstore.Bucket, ctx context.Context, key string, _, _ int64) (io.ReadCloser, objectstore.Object, error) {
		return b.Get(ctx, key, 0, -1)
	}}, "an object is read as it was written, whole and in part"},
	"lists like a file system": {mutant{list: func(b objectstore.Bucket, ctx context.Context, prefix string) iter.Seq2[objectstore.Object, error] {
		return func(yield func(objectstore.Object, error) bool) {
			var all []objectstore.Object
			for o, err := range b.List(ctx, prefix) {
				if err != nil {
					yield(o, err)
					return
				}
				all = append(all, o)
			}
			slices.SortFunc(all, func(a, b objectstore.Object) int {
				return slices.Compare(strings.Split(a.Key, "/"), strings.Split(b.Key, "/"))
			})
			for _, o := range all {
				if !yield(o, nil) {
					return
				}
			}
		}
	}}, "a list is sorted and complete"},
	"lists one page": {mutant{list: func(b objectstore.Bucket, ctx context.Context, prefix string) iter.Seq2[objectstore.Object, error] {
		return func(yield func(objectstore.Object, error) bool) {
			n := 0
			for o, err := range b.List(ctx, prefix) {
				if n++; n > 1000 || !yield(o, err) {
					return
				}
			}
		}
	}}, "a list is sorted and complete"},
	"removes one page": {mutant{remove: func(b objectstore.Bucket, ctx context.Context, keys ...string) error {
		return b.Delete(ctx, keys[:min(len(keys), 1000)]...)
	}}, "many objects are removed at once"},
	"misses what is not there": {mutant{remove: func(b objectstore.Bucket, ctx context.Context, keys ...string) error {
		for _, key := range keys {
			if _, err := b.Stat(ctx, key); err != nil {
				return err
			}
		}
		return b.Delete(ctx, keys...)
	}}, "a missing object is ErrNotExist, and can be deleted"},
}

// A lenient reader ends without an error where it fails.
type lenient struct{ io.ReadCloser }

func (l lenient) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

// The suite detects every mutant.
func TestMutants(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			promise := strings.ReplaceAll(m.promise, " ", "_")
			cmd := exec.Command(os.Args[0], "-test.run=^TestMutant$/^"+regexp.QuoteMeta(promise)+"$", "-test.short")
			cmd.Env = append(os.Environ(), mutantVar+"="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("the suite passes, or does not run: %v\n%s", err, out)
			}
			if want := "--- FAIL: TestMutant/" + promise; !strings.Contains(string(out), want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		})
	}
}

func TestMutant(t *testing.T) {
	m, ok := mutants[os.Getenv(mutantVar)]
	if !ok {
		t.Skip("runs in a process of its own")
	}
	dir := t.TempDir()
	objectstoretest.Run(t, func(t *testing.T) objectstore.Bucket {
		d, err := objectstore.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		m := m.mutant
		m.Bucket = d
		return m
	})
}
