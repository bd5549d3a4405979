package objectstoretest

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// memoryLimit bounds the growth of the heap during one large object, garbage included.
const memoryLimit = 16 << 20

// A stream generates bytes that depend on their offset, without holding them in memory.
type stream struct {
	size, pos int64
	peak      *uint64
}

func (s *stream) Read(p []byte) (int, error) {
	if s.pos == s.size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), s.size-s.pos)
	for i := range n {
		at := s.pos + i
		p[i] = byte(at ^ at>>8 ^ at>>16 ^ at>>24)
	}
	if s.pos>>20 != (s.pos+n)>>20 {
		sampleHeap(s.peak)
	}
	s.pos += n
	return int(n), nil
}

func (s *stream) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.pos
	case io.SeekEnd:
		offset += s.size
	}
	if offset < 0 || offset > s.size {
		return 0, fmt.Errorf("seek to %d", offset)
	}
	s.pos = offset
	return offset, nil
}

// sampleHeap raises peak to the memory in use.
func sampleHeap(peak *uint64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	*peak = max(*peak, m.HeapAlloc)
}

func checkLargeObject(h *harness, b objectstore.Bucket) {
	size := int64(100<<20 + 7)
	if testing.Short() {
		size = 40<<20 + 7
	}
	runtime.GC()
	var before, peak uint64
	sampleHeap(&before)
	start := time.Now()
	put, err := b.Put(h.Context(), h.prefix+"large", &stream{size: size, peak: &peak}, size, objectstore.Condition{})
	if err != nil {
		h.Fatalf("Put: %v", err)
	}
	wrote := time.Since(start)
	start = time.Now()
	r, o, err := b.Get(h.Context(), h.prefix+"large", 0, -1)
	if err != nil {
		h.Fatalf("Get: %v", err)
	}
	defer r.Close()
	if o.Tag != put.Tag || o.Size != size {
		h.Errorf("Get: %+v, Put: %+v", o, put)
	}
	compareBytes(h, r, &stream{size: size, peak: &peak})
	h.Logf("%d MiB: written in %v, read in %v, %d MiB of memory at most", size>>20,
		wrote.Round(time.Millisecond), time.Since(start).Round(time.Millisecond), (peak-min(before, peak))>>20)
	if peak > before+memoryLimit {
		h.Errorf("it took %d MiB of memory", (peak-before)>>20)
	}
	for _, offset := range []int64{5<<20 - 1, 16<<20 - 3, size - 2} { // where parts meet
		want := make([]byte, min(6, size-offset))
		_, _ = (&stream{size: size, pos: offset, peak: &peak}).Read(want)
		if got, _, err := h.getRange(b, "large", offset, 6); err != nil || got != string(want) {
			h.Errorf("Get from %d: %q, %v; want %q", offset, got, err, want)
		}
	}
}

// compareBytes reads both to their ends.
func compareBytes(h *harness, r, want io.Reader) {
	h.Helper()
	var a, b [64 << 10]byte
	for at := int64(0); ; {
		n, err := io.ReadFull(r, a[:])
		m, _ := io.ReadFull(want, b[:])
		if n != m || !bytes.Equal(a[:n], b[:m]) {
			h.Fatalf("the bytes from %d on differ, %v", at, err)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return
		}
		if err != nil {
			h.Fatalf("Read: %v", err)
		}
		at += int64(n)
	}
}
