package fakemodal

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// recordingLimit is how much of a stream is kept.
	recordingLimit = 64 << 20
	// batchLimit is how much of it one message has, about.
	batchLimit = 1 << 20
)

// A chunk is a part of a stream.
type chunk struct {
	index uint64 // from 1, without gaps
	data  []byte
	time  time.Time
}

// A recording is what a process has printed, for readers that come when they like. As
// long as somebody reads, a writer waits for the slowest reader when there is too much;
// with nobody there the oldest parts are dropped.
type recording struct {
	mu      sync.Mutex
	chunks  []chunk
	next    uint64 // index of the next chunk
	size    int
	closed  bool             // nothing more will come
	muted   bool             // writers never wait
	readers map[*uint64]bool // where each is: the index of the last chunk that it has
	changed chan struct{}    // closed at each change
}

func newRecording() *recording {
	return &recording{next: 1, readers: map[*uint64]bool{}, changed: make(chan struct{})}
}

// notifyReaders wakes all who wait. Callers hold mu.
func (r *recording) notifyReaders() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Write adds a chunk, unless the recording is closed. It never fails.
func (r *recording) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed && r.size+len(p) > recordingLimit && len(r.chunks) > 0 {
		if !r.muted && r.isNeeded(r.chunks[0].index) {
			changed := r.changed
			r.mu.Unlock()
			<-changed
			r.mu.Lock()
			continue
		}
		r.size -= len(r.chunks[0].data)
		r.chunks = r.chunks[1:]
	}
	if r.closed {
		return len(p), nil
	}
	r.chunks = append(r.chunks, chunk{r.next, slices.Clone(p), time.Now()})
	r.next++
	r.size += len(p)
	r.notifyReaders()
	return len(p), nil
}

// isNeeded reports whether a reader has not had that chunk yet.
func (r *recording) isNeeded(index uint64) bool {
	for at := range r.readers {
		if *at < index {
			return true
		}
	}
	return false
}

// muteWriters has writers wait for nobody any longer: the oldest parts are dropped, whoever
// reads.
func (r *recording) muteWriters() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.muted = true
	r.notifyReaders()
}

// close says that this was all.
func (r *recording) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.notifyReaders()
}

// batchAfter returns a batch of what comes after that chunk; if there is nothing, whether
// there never will be, and what is closed when that changes.
func (r *recording) batchAfter(index uint64) (batch []chunk, end bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := 0
	for _, c := range r.chunks {
		if c.index <= index {
			continue
		}
		if size += len(c.data); size > batchLimit && len(batch) > 0 {
			break
		}
		batch = append(batch, c)
	}
	return batch, r.closed, r.changed
}

// lastIndex is the index of the last chunk.
func (r *recording) lastIndex() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next - 1
}

// streamChunks sends what comes after that chunk, until the end of all, which it reports, or
// for so many seconds.
func (r *recording) streamChunks(ctx context.Context, index uint64, timeout float32, send func([]chunk) error) (end bool, err error) {
	at := index
	r.mu.Lock()
	r.readers[&at] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.readers, &at)
		r.notifyReaders()
	}()
	over, stop := timeoutChan(timeout)
	defer stop()
	for {
		batch, end, changed := r.batchAfter(at)
		if len(batch) > 0 {
			if err := send(batch); err != nil {
				return false, err
			}
			r.mu.Lock()
			at = batch[len(batch)-1].index
			r.notifyReaders()
			r.mu.Unlock()
			select {
			case <-over:
				return false, nil
			default:
				continue
			}
		}
		if end {
			return true, nil
		}
		select {
		case <-changed:
		case <-over:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
