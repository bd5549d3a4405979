package objectstoretest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

func checkOverwrite(h *harness, b objectstore.Bucket) {
	tags := map[string]bool{}
	for _, text := range []string{"one", "two", "a longer one", "", "2"} {
		tags[h.putText(b, "k", text).Tag] = true
		got, o := h.getText(b, "k")
		if got != text || o.Size != int64(len(text)) || !tags[o.Tag] {
			h.Errorf("Get: %q, %+v; want %q", got, o, text)
		}
	}
	if len(tags) != 5 {
		h.Errorf("five objects had %d tags", len(tags))
	}
	if got := h.listKeys(b, ""); !slices.Equal(got, []string{"k"}) {
		h.Errorf("List: %q", got)
	}
}

// checkAtomicReads writes objects of one letter each.
func checkAtomicReads(h *harness, b objectstore.Bucket) {
	text := func(i int) string { return strings.Repeat(string(rune('a'+i)), 300_000+i*1000) }
	h.putText(b, "k", text(0))
	done := make(chan struct{})
	var all sync.WaitGroup
	for range 3 {
		other := h.open(h.T)
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				got, o, err := h.getRange(other, "k", 0, -1)
				if atoll.KindOf(err) == atoll.ErrUnavailable && strings.Contains(err.Error(), "replaced") {
					continue // the read reported it and ended
				}
				if err != nil || got == "" || got != text(int(got[0]-'a')) || o.Size != int64(len(got)) {
					h.Errorf("Get: %d bytes from %.10q to %.10q, %+v, %v", len(got), got, got[max(0, len(got)-10):], o, err)
					return
				}
			}
		})
	}
	for i := range 20 {
		h.putText(b, "k", text(i))
		if got, _ := h.getText(b, "k"); got != text(i) {
			h.Errorf("what was read is not what was written just before")
		}
	}
	close(done)
	all.Wait()
}

func checkReaderPosition(h *harness, b objectstore.Bucket) {
	r := strings.NewReader("0123456789")
	if _, err := r.Seek(4, io.SeekStart); err != nil {
		h.Fatal(err)
	}
	if _, err := b.Put(h.Context(), h.prefix+"k", r, 6, objectstore.Condition{}); err != nil {
		h.Fatalf("Put: %v", err)
	}
	h.wantText(b, "k", "456789")
}

// A reader fails, or cancels, when so many bytes were read, however often it began
// anew.
type reader struct {
	*bytes.Reader
	mu   sync.Mutex
	left int
	then func() error
	used int
}

func newReader(size, left int, then func() error) *reader {
	return &reader{Reader: bytes.NewReader(make([]byte, size)), left: left, then: then}
}

func (r *reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used++
	n, err := r.Reader.Read(p)
	before := r.left
	if r.left -= n; before >= 0 && r.left < 0 {
		if err := r.then(); err != nil {
			return 0, err
		}
	}
	return n, err
}

// WriteTo hides that of bytes.Reader, which would not be Read.
func (r *reader) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{r}) }

func (r *reader) useCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// sizes holds the sizes of an object sent in one request and of one sent in parts.
var sizes = []int{100_000, 12 << 20}

func checkFailingReaders(h *harness, b objectstore.Bucket) {
	h.putText(b, "old", "old")
	broken := errors.New("the disk is broken")
	for _, size := range sizes {
		for what, tt := range map[string]struct {
			r    io.ReadSeeker
			kind atoll.Kind
			err  error
		}{
			"short":     {bytes.NewReader(make([]byte, size-1)), atoll.ErrInvalid, nil},
			"long":      {bytes.NewReader(make([]byte, size+1)), atoll.ErrInvalid, nil},
			"shrinking": {newReader(size, size/2, func() error { return io.EOF }), atoll.ErrInvalid, nil},
			"failing":   {newReader(size, size/2, func() error { return broken }), "", broken},
			"denied":    {newReader(size, 0, func() error { return atoll.ErrDenied }), atoll.ErrDenied, nil},
		} {
			for _, key := range []string{"new", "old"} {
				if r, ok := tt.r.(*reader); ok {
					tt.r = newReader(size, size/2, r.then)
				} else if _, err := tt.r.Seek(0, io.SeekStart); err != nil {
					h.Fatal(err)
				}
				_, err := b.Put(h.Context(), h.prefix+key, tt.r, int64(size), objectstore.Condition{})
				if tt.err != nil && !errors.Is(err, tt.err) {
					h.Errorf("a reader that is %s: %v, want %v", what, err, tt.err)
				}
				if tt.kind != "" {
					h.wantKind("a reader that is "+what, err, tt.kind)
				}
			}
		}
	}
	h.wantText(b, "new", "")
	h.wantText(b, "old", "old")
	if got := h.listKeys(b, ""); !slices.Equal(got, []string{"old"}) {
		h.Errorf("List: %q", got)
	}
}

func checkReaderRelease(h *harness, b objectstore.Bucket) {
	for _, size := range sizes {
		ctx, cancel := context.WithCancel(h.Context())
		for what, r := range map[string]*reader{
			"that succeeds":   newReader(size, size*100, nil),
			"that fails":      newReader(size, size/2, func() error { return errors.New("broken") }),
			"that is stopped": newReader(size, size*3/2, func() error { cancel(); return nil }),
		} {
			_, _ = b.Put(ctx, h.prefix+"k", r, int64(size), objectstore.Condition{})
			used := r.useCount()
			time.Sleep(20 * time.Millisecond)
			if now := r.useCount(); now != used {
				h.Errorf("the reader of a Put %s was used after it", what)
			}
		}
		cancel()
	}
}

func checkCancelledPut(h *harness, b objectstore.Bucket) {
	h.putText(b, "old", "old")
	for _, size := range sizes {
		for _, when := range []int{0, size / 2, size * 3 / 2} { // the third where it is read twice
			for _, key := range []string{"new", "old"} {
				ctx, cancel := context.WithCancel(h.Context())
				r := newReader(size, when, func() error { cancel(); return nil })
				_, err := b.Put(ctx, h.prefix+key, r, int64(size), objectstore.Condition{Absent: key == "new"})
				stopped := ctx.Err() != nil
				cancel()
				if stopped && !errors.Is(err, context.Canceled) {
					h.Errorf("Put that was cancelled: %v", err)
				}
				if !stopped && err != nil {
					h.Errorf("Put: %v", err)
				}
				if stopped {
					continue
				}
				if err := b.Delete(h.Context(), h.prefix+"new"); err != nil {
					h.Error(err)
				}
				h.putText(b, "old", "old")
			}
		}
	}
	h.wantText(b, "old", "old")
	if got := h.listKeys(b, ""); !slices.Equal(got, []string{"old"}) {
		h.Errorf("List: %q", got)
	}
}

func checkCancelledGet(h *harness, b objectstore.Bucket) {
	size := sizes[1]
	if _, err := b.Put(h.Context(), h.prefix+"k", bytes.NewReader(make([]byte, size)), int64(size), objectstore.Condition{}); err != nil {
		h.Fatalf("Put: %v", err)
	}
	ctx, cancel := context.WithCancel(h.Context())
	defer cancel()
	r, _, err := b.Get(ctx, h.prefix+"k", 0, -1)
	if err != nil {
		h.Fatalf("Get: %v", err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		h.Fatalf("Read: %v", err)
	}
	cancel()
	n, err := io.Copy(io.Discard, r)
	if n < int64(size-1000) && !errors.Is(err, context.Canceled) {
		h.Errorf("Read, cancelled: %d bytes more, %v", n, err)
	}
	if _, err := r.Read(make([]byte, 1)); n < int64(size-1000) && (err == nil || err == io.EOF) {
		h.Errorf("Read, again: %v", err)
	}
}

func checkEndedContext(h *harness, b objectstore.Bucket) {
	h.putText(b, "k", "x")
	ctx, cancel := context.WithCancel(h.Context())
	cancel()
	_, put := b.Put(ctx, h.prefix+"k", strings.NewReader("new"), 3, objectstore.Condition{})
	_, _, get := b.Get(ctx, h.prefix+"k", 0, -1)
	_, stat := b.Stat(ctx, h.prefix+"k")
	var list error
	for _, err := range b.List(ctx, h.prefix) {
		list = err
	}
	for what, err := range map[string]error{
		"Put": put, "Get": get, "Stat": stat, "List": list, "Delete": b.Delete(ctx, h.prefix+"k"), "Delete of none": b.Delete(ctx, h.prefix+"none"),
	} {
		if !errors.Is(err, context.Canceled) {
			h.Errorf("%s: %v", what, err)
		}
	}
	h.wantText(b, "k", "x")
}
