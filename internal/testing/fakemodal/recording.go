package fakemodal

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// recordingLimit is the number of bytes of a stream that a recording holds.
	recordingLimit = 64 << 20
	// batchLimit is the approximate size of one message, in bytes.
	batchLimit = 1 << 20
)

// A chunk is a part of a stream.
type chunk struct {
	index uint64 // from 1, without gaps
	data  []byte
	time  time.Time
}

// A recording is the output of a process, for readers that may come later. While there are readers, a
// writer waits for the slowest one if the recording is full. Without readers, it drops the oldest
// chunks.
type recording struct {
	mu      sync.Mutex
	chunks  []chunk
	next    uint64 // index of the next chunk
	size    int
	closed  bool             // there is no more output
	muted   bool             // writers never wait
	readers map[*uint64]bool // by pointer to the index of the last chunk that the reader has
	changed chan struct{}    // closed at each change
}

func newRecording() *recording {
	return &recording{next: 1, readers: map[*uint64]bool{}, changed: make(chan struct{})}
}

// notifyReaders wakes all waiting calls. The caller holds mu.
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

// isNeeded reports whether a reader has not yet read the chunk.
func (r *recording) isNeeded(index uint64) bool {
	for at := range r.readers {
		if *at < index {
			return true
		}
	}
	return false
}

// muteWriters stops writers from waiting for readers: the recording drops the oldest chunks instead.
func (r *recording) muteWriters() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.muted = true
	r.notifyReaders()
}

// closeRecording marks the end of the output.
func (r *recording) closeRecording() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.notifyReaders()
}

// batchAfter returns the chunks after index, up to batchLimit. end reports whether the recording is
// closed. changed is closed at the next change.
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

// lastIndex returns the index of the last chunk.
func (r *recording) lastIndex() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next - 1
}

// streamChunks sends the chunks after index, until the end of the recording or for timeout seconds.
// end reports whether it has sent all.
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
