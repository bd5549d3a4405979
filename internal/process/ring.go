package process

import (
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A ring retains the last bytes of a stream, at most limit of them, and counts all bytes
// ever written. Offsets are positions in the whole stream.
//
// One goroutine writes. While readers are attached, the writer waits for the slowest one;
// without readers, it overwrites the oldest bytes.
type ring struct {
	limit int64
	done  chan struct{} // closed by finishStream

	mu       sync.Mutex
	room     sync.Cond // signals that the writer may go on
	buf      []byte    // the byte at offset o is buf[o % len(buf)]; grown on demand
	start    int64     // offset of the oldest retained byte
	end      int64     // offset of the next byte
	readers  map[*reader]struct{}
	held     bool // the writer drops nothing before the next reader attaches
	holds    int  // number of calls of holdContent, to identify the last one
	free     bool // the writer no longer waits for readers
	finished bool // the ring ignores further bytes
}

// A reader is one attachment to a ring.
type reader struct {
	ring *ring
	name string        // of the Attachment
	wake chan struct{} // signals that there may be more to read; capacity 1

	// Guarded by ring.mu.
	pos   int64
	until int64 // offset to stop at; -1 means the end of the stream
	lost  bool  // its client was lost; the reader only makes the ring retain bytes

	replaced bool // another reader has taken its place
}

const minRing = 4 << 10

func newRing(limit int64) *ring {
	r := &ring{limit: limit, done: make(chan struct{})}
	r.room.L = &r.mu
	return r
}

// write appends p, and waits for the slowest reader if necessary. After finishStream it
// does nothing.
func (r *ring) write(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(p) > 0 && !r.finished {
		n := min(r.freeBytes(), int64(len(p)))
		if n == 0 {
			r.room.Wait()
			continue
		}
		r.storeBytes(p[:n])
		p = p[n:]
		r.wakeAll()
	}
}

// freeBytes returns the number of bytes that fit before an attached reader loses some.
func (r *ring) freeBytes() int64 {
	if r.free {
		return r.limit
	}
	slowest := r.end
	for rd := range r.readers {
		slowest = min(slowest, rd.pos-r.rewindBytes())
	}
	slowest = max(slowest, r.start)
	if r.held {
		slowest = r.start
	}
	return r.limit - (r.end - slowest)
}

// maxInFlight is the number of bytes that may be in flight from a reader to its client, over
// a few connections of 256 KiB each.
const maxInFlight = 768 << 10

// rewindBytes returns the number of bytes that the ring retains behind an attached reader:
// they may not have arrived, and a lost client asks for them again. A ring with a limit
// below maxInFlight retains no bytes especially for that.
func (r *ring) rewindBytes() int64 {
	if r.limit < maxInFlight {
		return 0
	}
	return min(r.limit*3/4, maxInFlight)
}

// storeBytes writes p, which is not longer than limit, over the oldest bytes.
func (r *ring) storeBytes(p []byte) {
	r.growBuffer(min(r.limit, r.end-r.start+int64(len(p))))
	size := int64(len(r.buf))
	n := copy(r.buf[r.end%size:], p)
	copy(r.buf, p[n:])
	r.end += int64(len(p))
	r.start = max(r.start, r.end-size)
}

// growBuffer enlarges the buffer to need bytes at least.
func (r *ring) growBuffer(need int64) {
	have := int64(len(r.buf))
	if need <= have {
		return
	}
	r.resizeBuffer(min(r.limit, max(need, 2*have, minRing)))
}

// resizeBuffer moves the retained bytes to a new buffer of size bytes.
func (r *ring) resizeBuffer(size int64) {
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

// releaseWriter ends back-pressure permanently: a reader that is too slow gets a gap.
func (r *ring) releaseWriter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = true
	r.room.Broadcast()
}

// finishStream ends the stream at its current length. A second call does nothing.
func (r *ring) finishStream() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished {
		return
	}
	r.finished = true
	if kept := r.end - r.start; kept < int64(len(r.buf)) {
		r.resizeBuffer(max(kept, 1)) // the table may retain it for long
	}
	close(r.done)
	r.room.Broadcast()
	r.wakeAll()
}

// keptBytes returns the memory of the ring's buffer, in bytes.
func (r *ring) keptBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(len(r.buf))
}

// dropContent drops the content of a finished ring and returns the bytes of memory freed:
// none while the ring has a reader or waits for its first one.
func (r *ring) dropContent() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.finished || r.held || len(r.readers) > 0 {
		return 0
	}
	size := int64(len(r.buf))
	r.start, r.buf = r.end, nil
	return size
}

// endedRing returns a finished ring with data at the offset start.
func endedRing(start int64, data []byte) *ring {
	r := newRing(max(int64(len(data)), 1))
	r.start, r.end = start, start
	r.write(data)
	r.finishStream()
	return r
}

// keptContent returns the content of a finished ring, in two parts. The caller must not
// change them.
func (r *ring) keptContent() (atoll.StreamStatus, [2][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, n := atoll.StreamStatus{Written: r.end, Oldest: r.start}, r.end-r.start
	if n == 0 {
		return st, [2][]byte{}
	}
	at := r.start % int64(len(r.buf))
	first := r.buf[at:min(at+n, int64(len(r.buf)))]
	return st, [2][]byte{first, r.buf[:n-int64(len(first))]}
}

// streamStatus returns the counts of bytes.
func (r *ring) streamStatus() atoll.StreamStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return atoll.StreamStatus{Written: r.end, Oldest: r.start}
}

// addReader adds a reader with that name from the given offset, which follows the stream
// or, with noFollow, stops at its current end. It reports false for an offset that does not
// exist.
func (r *ring) addReader(name string, from int64, noFollow bool, wake chan struct{}) (*reader, bool) {
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
	r.replaceReader(rd)
	r.readers[rd] = struct{}{}
	r.held = false
	return rd, true
}

// replaceReader removes the reader that rd replaces: the one of the same name or, if rd has
// no name, a lost one at the offset of rd or a little further.
func (r *ring) replaceReader(rd *reader) {
	var best *reader
	for old := range r.readers {
		switch {
		case rd.name != "" && old.name == rd.name:
			best = old
		case rd.name != "" || !old.lost || old.name != "" && old.name != atoll.ExecAttachment:
		case rd.pos <= old.pos && old.pos-rd.pos <= r.rewindBytes() && (best == nil || old.pos < best.pos):
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

// holdContent prevents the writer from dropping bytes until the next reader attaches, and
// returns a number for endHold.
func (r *ring) holdContent() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
	r.holds++
	return r.holds
}

// endHold ends the hold with that number, unless a later one has begun.
func (r *ring) endHold(time int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds == time {
		r.held = false
		r.room.Signal()
	}
}

// detachReader removes the reader from the ring. A second call does nothing.
func (rd *reader) detachReader() {
	r := rd.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readers, rd)
	r.room.Signal()
}

// markLost is detachReader for a reader whose client was lost, and may come again. For the
// time d the ring retains the bytes that the reader has not read, and those just read, which
// may not have arrived.
func (rd *reader) markLost(d time.Duration) {
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
	time.AfterFunc(d, rd.detachReader)
}

// isReplaced reports whether another reader has taken the place of rd.
func (rd *reader) isReplaced() bool {
	rd.ring.mu.Lock()
	defer rd.ring.mu.Unlock()
	return rd.replaced
}

// read copies the next bytes into p. It never waits: n is 0 if there are no new bytes, and
// eof says that there never will be, as for a detached reader. It reports dropped bytes
// once, with n 0, as the gap [from, to).
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
