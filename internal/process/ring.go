package process

import (
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A ring keeps the last bytes of a stream, at most limit of them, and counts
// all that were ever written. Offsets are positions in the whole stream.
//
// One goroutine writes. While readers are attached, the slowest one holds it
// back; with none attached, the oldest bytes give way.
type ring struct {
	limit int64
	done  chan struct{} // closed by finish

	mu       sync.Mutex
	room     sync.Cond // told when the writer may go on
	buf      []byte    // the byte at offset o is buf[o % len(buf)]; grown on demand
	start    int64     // the oldest byte kept
	end      int64     // where the next byte goes
	readers  map[*reader]struct{}
	held     bool // nothing is dropped before the next reader comes
	holds    int  // how often it was held, to tell the times apart
	free     bool // readers no longer hold the writer back
	finished bool // nothing more is kept
}

// A reader is one attachment to a ring.
type reader struct {
	ring *ring
	name string        // of the Attachment
	wake chan struct{} // told when there may be more to read; capacity 1

	// Guarded by ring.mu.
	pos   int64
	until int64 // where to stop; -1 means at the end of the stream
	lost  bool  // it is there only to keep what it had

	replaced bool // another one has come in its place
}

const minRing = 4 << 10

func newRing(limit int64) *ring {
	r := &ring{limit: limit, done: make(chan struct{})}
	r.room.L = &r.mu
	return r
}

// write appends p, waiting for the slowest reader as long as it must. After
// finish it does nothing.
func (r *ring) write(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(p) > 0 && !r.finished {
		n := min(r.spare(), int64(len(p)))
		if n == 0 {
			r.room.Wait()
			continue
		}
		r.put(p[:n])
		p = p[n:]
		r.wakeAll()
	}
}

// spare is how many bytes can be written before an attached reader would lose
// some.
func (r *ring) spare() int64 {
	if r.free {
		return r.limit
	}
	slowest := r.end
	for rd := range r.readers {
		slowest = min(slowest, rd.pos-r.behind())
	}
	slowest = max(slowest, r.start)
	if r.held {
		slowest = r.start
	}
	return r.limit - (r.end - slowest)
}

// wayMost is how much may be on its way from a reader to where it is read, over a few
// connections each of which takes 256 KiB.
const wayMost = 768 << 10

// behind is how much is kept of what an attached reader has had: it may not have arrived,
// and who is lost comes again for it. Rings that are made small on purpose keep what they
// can.
func (r *ring) behind() int64 {
	if r.limit < wayMost {
		return 0
	}
	return min(r.limit*3/4, wayMost)
}

// put stores p, which is not longer than limit, over the oldest bytes.
func (r *ring) put(p []byte) {
	r.grow(min(r.limit, r.end-r.start+int64(len(p))))
	size := int64(len(r.buf))
	n := copy(r.buf[r.end%size:], p)
	copy(r.buf, p[n:])
	r.end += int64(len(p))
	r.start = max(r.start, r.end-size)
}

// grow makes room for need bytes.
func (r *ring) grow(need int64) {
	have := int64(len(r.buf))
	if need <= have {
		return
	}
	r.resize(min(r.limit, max(need, 2*have, minRing)))
}

// resize moves what is kept to a buffer of size bytes.
func (r *ring) resize(size int64) {
	old := r.buf
	r.buf = make([]byte, size)
	for o := r.start; o < r.end; {
		from := old[o%int64(len(old)):]
		from = from[:min(int64(len(from)), r.end-o)]
		o += int64(copy(r.buf[o%size:], from))
	}
}

func (r *ring) wakeAll() {
	for rd := range r.readers {
		select {
		case rd.wake <- struct{}{}:
		default:
		}
	}
}

// release ends back-pressure for good: a reader that is too slow has a gap.
func (r *ring) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = true
	r.room.Broadcast()
}

// finish ends the stream where it is now. A second call does nothing.
func (r *ring) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished {
		return
	}
	r.finished = true
	if kept := r.end - r.start; kept < int64(len(r.buf)) {
		r.resize(max(kept, 1)) // it may be kept for long
	}
	close(r.done)
	r.room.Broadcast()
	r.wakeAll()
}

// kept is how much memory the ring takes.
func (r *ring) kept() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(len(r.buf))
}

// empty drops all that a finished ring keeps and says how much memory that
// frees: none, while there is a reader or one is still to come.
func (r *ring) empty() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.finished || r.held || len(r.readers) > 0 {
		return 0
	}
	size := int64(len(r.buf))
	r.start, r.buf = r.end, nil
	return size
}

// endedRing is a finished ring that keeps data, from the given offset on.
func endedRing(start int64, data []byte) *ring {
	r := newRing(max(int64(len(data)), 1))
	r.start, r.end = start, start
	r.write(data)
	r.finish()
	return r
}

// content is what a finished ring keeps, in two parts that are not to be
// changed.
func (r *ring) content() (atoll.StreamStatus, [2][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, n := atoll.StreamStatus{Written: r.end, Kept: r.start}, r.end-r.start
	if n == 0 {
		return st, [2][]byte{}
	}
	at := r.start % int64(len(r.buf))
	first := r.buf[at:min(at+n, int64(len(r.buf)))]
	return st, [2][]byte{first, r.buf[:n-int64(len(first))]}
}

// status counts the bytes.
func (r *ring) status() atoll.StreamStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return atoll.StreamStatus{Written: r.end, Kept: r.start}
}

// attach adds a reader of that name from the given offset that follows the
// stream or, with noFollow, stops at what is now its end. It reports false for
// an offset that does not exist.
func (r *ring) attach(name string, from int64, noFollow bool, wake chan struct{}) (*reader, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if from == atoll.FromNow {
		from = r.end
	}
	if from < 0 || from > r.end {
		return nil, false
	}
	rd := &reader{ring: r, name: name, wake: wake, pos: from, until: -1}
	if noFollow {
		rd.until = r.end
	}
	if r.readers == nil {
		r.readers = make(map[*reader]struct{}, 1)
	}
	r.replace(rd)
	r.readers[rd] = struct{}{}
	r.held = false
	return rd, true
}

// replace removes the reader whose place rd takes: the one of the same name or,
// if rd has no name, a lost one that was where rd begins or a little further.
func (r *ring) replace(rd *reader) {
	var best *reader
	for old := range r.readers {
		switch {
		case rd.name != "" && old.name == rd.name:
			best = old
		case rd.name != "" || !old.lost || old.name != "" && old.name != atoll.ExecAttachment:
		case rd.pos <= old.pos && old.pos-rd.pos <= r.behind() && (best == nil || old.pos < best.pos):
			best = old
		}
	}
	if best == nil {
		return
	}
	delete(r.readers, best)
	best.replaced = true
	select {
	case best.wake <- struct{}{}:
	default:
	}
}

// hold keeps the writer from dropping anything until the next reader comes, and says which
// time that is.
func (r *ring) hold() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
	r.holds++
	return r.holds
}

// unhold ends the hold of that time.
func (r *ring) unhold(time int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds == time {
		r.held = false
		r.room.Signal()
	}
}

// detach lets the ring forget the reader. A second call does nothing.
func (rd *reader) detach() {
	r := rd.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readers, rd)
	r.room.Signal()
}

// lose is detach for a reader whose other end was lost, and may come again. For so long
// what it has not had is kept, and what it has just had, which may not have arrived.
func (rd *reader) lose(d time.Duration) {
	r := rd.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, attached := r.readers[rd]; !attached || rd.lost {
		return
	}
	if r.finished || r.free {
		delete(r.readers, rd)
		r.room.Signal()
		return
	}
	rd.lost = true
	time.AfterFunc(d, rd.detach)
}

// isReplaced reports whether another reader has taken the place of rd.
func (rd *reader) isReplaced() bool {
	rd.ring.mu.Lock()
	defer rd.ring.mu.Unlock()
	return rd.replaced
}

// read copies what comes next into p. It never waits: n is 0 when there is
// nothing new, and eof says that there never will be, as for a reader that was
// detached. Bytes that were dropped are reported once, with n 0, as the gap
// [from, to).
func (rd *reader) read(p []byte) (n int, from, to int64, eof bool) {
	r := rd.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, attached := r.readers[rd]; !attached || rd.lost {
		return 0, 0, 0, true
	}
	if rd.pos < r.start {
		from, to = rd.pos, r.start
		rd.pos = r.start
		return 0, from, to, false
	}
	stop := r.end
	if rd.until >= 0 {
		stop = min(stop, rd.until)
	}
	if avail := stop - rd.pos; avail > 0 {
		p = p[:min(int64(len(p)), avail)]
		at := rd.pos % int64(len(r.buf))
		n = copy(p, r.buf[at:])
		n += copy(p[n:], r.buf)
		rd.pos += int64(n)
		r.room.Signal()
		return n, 0, 0, false
	}
	return 0, 0, 0, r.finished || rd.until >= 0
}
