// Package objectstoretest checks that implementations of objectstore.Bucket keep their promises.
package objectstoretest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// An Option configures Run.
type Option func(*config)

type config struct {
	except map[string]string
	left   func(t *testing.T, prefix string) []string
}

// Except skips the subtest with this name and prints reason. An unknown name fails the
// run, so that exceptions do not outlive their cause.
func Except(name, reason string) Option { return func(c *config) { c.except[name] = reason } }

// Leftovers tells the suite how to list the remains of interrupted writes below prefix,
// which no List shows. The suite calls it at the end of each subtest and expects none.
func Leftovers(list func(t *testing.T, prefix string) []string) Option {
	return func(c *config) { c.left = list }
}

// Run checks a bucket. Each call of open opens the same bucket, as another program
// would, and closes it when its test ends. The suite removes what it has stored, and
// only uses keys that begin with "t-".
func Run(t *testing.T, open func(t *testing.T) objectstore.Bucket, opts ...Option) {
	cfg := &config{except: map[string]string{}}
	for _, opt := range opts {
		opt(cfg)
	}
	names := map[string]bool{}
	for _, tt := range promises {
		names[tt.name] = true
		t.Run(tt.name, func(t *testing.T) {
			if reason := cfg.except[tt.name]; reason != "" {
				t.Skip(reason)
			}
			goroutines := goleak.IgnoreCurrent()
			t.Cleanup(func() {
				if err := testenv.AwaitGoroutines(goroutines); err != nil { // servers of tests linger
					t.Errorf("goroutines are left: %v", err)
				}
			})
			h := &harness{T: t, open: open, prefix: "t-" + atoll.NewID() + "/"}
			b := open(t)
			defer h.cleanUp(b, cfg)
			tt.check(h, b)
		})
	}
	for name := range cfg.except {
		if !names[name] {
			t.Errorf("there is no promise %q to except", name)
		}
	}
}

var promises = []struct {
	name  string
	check func(h *harness, b objectstore.Bucket)
}{
	{"an object is read as it was written, whole and in part", checkReads},
	{"an object may be empty", checkEmptyObject},
	{"a missing object is ErrNotExist, and can be deleted", checkMissingObject},
	{"an invalid key is ErrInvalid", checkInvalidKeys},
	{"keys may be odd", checkOddKeys},
	{"there can be an object at a key, and others below it", checkNestedKeys},
	{"an overwritten object is replaced as a whole, and has another tag", checkOverwrite},
	{"a reader has the old object or the new one", checkAtomicReads},
	{"a write starts where its reader stands", checkReaderPosition},
	{"a reader that fails, or has fewer or more bytes, stores nothing", checkFailingReaders},
	{"a reader is not used when the write has returned", checkReaderRelease},
	{"conditions hold", checkConditions},
	{"a writer can rely on conditions, says CheckConditions", checkCheckConditions},
	{"of many concurrent writers of an absent object, one succeeds", checkRacingPuts},
	{"concurrent updates on a tag lose no update", checkRacingUpdates},
	{"a list is sorted and complete", checkListOrder},
	{"a list has the keys that begin with the prefix, and can be stopped", checkListPrefix},
	{"many objects are removed at once", checkManyDeletes},
	{"a write that is cancelled leaves nothing", checkCancelledPut},
	{"a read that is cancelled ends", checkCancelledGet},
	{"calls with an ended context fail", checkEndedContext},
	{"a large object takes little memory", checkLargeObject},
}

// A harness is one subtest.
type harness struct {
	*testing.T
	open   func(t *testing.T) objectstore.Bucket
	prefix string // of all its keys
}

// cleanUp removes what the subtest has stored, and sees that nothing else is left.
func (h *harness) cleanUp(b objectstore.Bucket, cfg *config) {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(time.Minute))
	defer cancel()
	var keys []string
	for o, err := range b.List(ctx, h.prefix) {
		if err != nil {
			h.Errorf("List: %v", err)
			break
		}
		keys = append(keys, o.Key)
	}
	if err := b.Delete(ctx, keys...); err != nil {
		h.Errorf("Delete: %v", err)
	}
	if cfg.left != nil {
		if left := cfg.left(h.T, h.prefix); len(left) > 0 {
			h.Errorf("left behind: %q", left)
		}
	}
}

func (h *harness) putText(b objectstore.Bucket, key, text string) objectstore.Object {
	h.Helper()
	o, err := b.Put(h.Context(), h.prefix+key, strings.NewReader(text), int64(len(text)), objectstore.Condition{})
	if err != nil {
		h.Fatalf("Put: %v", err)
	}
	if o.Key != h.prefix+key || o.Size != int64(len(text)) || o.Tag == "" {
		h.Errorf("Put: %+v", o)
	}
	return o
}

// getText reads an object as it is.
func (h *harness) getText(b objectstore.Bucket, key string) (string, objectstore.Object) {
	h.Helper()
	text, o, err := h.getRange(b, key, 0, -1)
	if err != nil {
		h.Fatalf("Get: %v", err)
	}
	return text, o
}

func (h *harness) getRange(b objectstore.Bucket, key string, offset, length int64) (string, objectstore.Object, error) {
	r, o, err := b.Get(h.Context(), h.prefix+key, offset, length)
	if err != nil {
		return "", o, err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	return string(text), o, err
}

// listKeys returns the keys without the subtest's prefix.
func (h *harness) listKeys(b objectstore.Bucket, prefix string) []string {
	h.Helper()
	var keys []string
	for o, err := range b.List(h.Context(), h.prefix+prefix) {
		if err != nil {
			h.Fatalf("List: %v", err)
		}
		keys = append(keys, strings.TrimPrefix(o.Key, h.prefix))
	}
	return keys
}

func (h *harness) wantKind(what string, err error, want atoll.Kind) {
	h.Helper()
	if atoll.KindOf(err) != want {
		h.Errorf("%s: %v, want %q", what, err, want)
	}
}

// wantText sees what an object holds; that it is not there, if want is "".
func (h *harness) wantText(b objectstore.Bucket, key, want string) {
	h.Helper()
	got, _, err := h.getRange(b, key, 0, -1)
	if want == "" && atoll.KindOf(err) == atoll.ErrNotExist {
		return
	}
	if err != nil || got != want {
		h.Errorf("%s holds %.40q, %v; want %.40q", key, got, err, want)
	}
}

func checkReads(h *harness, b objectstore.Bucket) {
	const text = "0123456789"
	before := time.Now().Add(-time.Minute)
	put := h.putText(b, "digits", text)
	other := h.open(h.T)
	stat, err := other.Stat(h.Context(), h.prefix+"digits")
	if err != nil {
		h.Fatalf("Stat: %v", err)
	}
	got, o := h.getText(other, "digits")
	if got != text {
		h.Errorf("Get: %q, want %q", got, text)
	}
	for what, o := range map[string]objectstore.Object{"Stat": stat, "Get": o} {
		if o.Key != put.Key || o.Size != 10 || o.Tag != put.Tag || o.Modified.Before(before) || o.Modified.After(time.Now().Add(time.Minute)) {
			h.Errorf("%s: %+v, after Put: %+v", what, o, put)
		}
	}
	for _, tt := range []struct {
		offset, length int64
		want           string
	}{
		{0, 10, text}, {0, 1, "0"}, {9, 1, "9"}, {3, 4, "3456"}, {3, -1, "3456789"}, {3, 100, "3456789"}, {0, 1 << 62, text},
		{5, 1<<63 - 1, "56789"}, {0, 0, ""}, {4, 0, ""}, {10, 0, ""}, {10, 5, ""}, {10, -1, ""},
	} {
		got, o, err := h.getRange(b, "digits", tt.offset, tt.length)
		if err != nil || got != tt.want || o.Size != 10 || o.Tag != put.Tag {
			h.Errorf("Get of %d from %d: %q, %+v, %v; want %q", tt.length, tt.offset, got, o, err, tt.want)
		}
	}
	for _, offset := range []int64{-1, 11, 1 << 62} {
		for _, length := range []int64{-1, 0, 5} {
			_, _, err := h.getRange(b, "digits", offset, length)
			h.wantKind(fmt.Sprintf("Get of %d from %d", length, offset), err, atoll.ErrInvalid)
		}
	}
}

func checkEmptyObject(h *harness, b objectstore.Bucket) {
	h.putText(b, "empty", "")
	if got, o := h.getText(b, "empty"); got != "" || o.Size != 0 {
		h.Errorf("Get: %q, %+v", got, o)
	}
	for _, length := range []int64{-1, 0, 5} {
		if got, _, err := h.getRange(b, "empty", 0, length); got != "" || err != nil {
			h.Errorf("Get of %d: %q, %v", length, got, err)
		}
		_, _, err := h.getRange(b, "empty", 1, length)
		h.wantKind("Get behind its end", err, atoll.ErrInvalid)
	}
	if got := h.listKeys(b, ""); !slices.Equal(got, []string{"empty"}) {
		h.Errorf("List: %q", got)
	}
}

func checkMissingObject(h *harness, b objectstore.Bucket) {
	_, _, err := h.getRange(b, "none", 0, -1)
	h.wantKind("Get", err, atoll.ErrNotExist)
	_, _, err = h.getRange(b, "none", 3, 0)
	h.wantKind("Get of nothing", err, atoll.ErrNotExist)
	_, err = b.Stat(h.Context(), h.prefix+"none/below")
	h.wantKind("Stat", err, atoll.ErrNotExist)
	if err := b.Delete(h.Context(), h.prefix+"none"); err != nil {
		h.Errorf("Delete: %v", err)
	}
	if err := b.Delete(h.Context()); err != nil {
		h.Errorf("Delete of no keys: %v", err)
	}
	if got := h.listKeys(b, ""); len(got) > 0 {
		h.Errorf("List: %q", got)
	}
	h.putText(b, "there", "x")
	for range 2 {
		if err := b.Delete(h.Context(), h.prefix+"there", h.prefix+"none", h.prefix+"none/below"); err != nil {
			h.Errorf("Delete: %v", err)
		}
		h.wantText(b, "there", "")
	}
}
