package sshd

import (
	"io"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// A reader is a file being read. Clients request many pieces at once, nearly in the
// order of the file; an FS returns a stream. So the reader keeps the last part of the
// stream for late requests, and reads ahead for early ones; any other offset starts a
// new stream.
type reader struct {
	files *fileServer
	name  string

	mu     sync.Mutex
	stream io.ReadCloser
	buf    []byte // the last bytes read from it
	end    int64  // offset in the file of the next byte of stream
	over   bool   // the file ends there
}

const (
	readChunk = 64 << 10  // bytes read from a stream at once
	maxEarly  = 256 << 10 // how far ahead of the stream a piece may be; the library requests eight of 32 KiB
	maxKept   = 512 << 10 // bytes kept for late requests; at least half of that
)

// ReadAt implements io.ReaderAt.
func (r *reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, atoll.ErrInvalid
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if off < r.end-int64(len(r.buf)) || off > r.end+maxEarly {
		if err := r.openStream(off); err != nil {
			return 0, statusOf(err)
		}
	}
	for !r.over && r.end < off+int64(len(p)) {
		if err := r.readMore(); err != nil {
			return 0, statusOf(err)
		}
	}
	if off >= r.end {
		return 0, io.EOF
	}
	n := copy(p, r.buf[off-(r.end-int64(len(r.buf))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// openStream opens a stream at off.
func (r *reader) openStream(off int64) error {
	if r.stream != nil {
		r.stream.Close()
		r.stream = nil
	}
	stream, _, err := r.files.fs.Read(r.files.ctx, r.name, off)
	if err != nil {
		return err
	}
	r.stream, r.buf, r.end, r.over = stream, r.buf[:0], off, false
	return nil
}

// readMore reads the next bytes of the stream.
func (r *reader) readMore() error {
	if r.stream == nil { // the last openStream failed
		if err := r.openStream(r.end); err != nil {
			return err
		}
	}
	if len(r.buf) >= maxKept {
		r.buf = append(r.buf[:0], r.buf[len(r.buf)/2:]...)
	}
	have := len(r.buf)
	r.buf = append(r.buf, make([]byte, readChunk)...)
	n, err := r.stream.Read(r.buf[have:])
	r.buf = r.buf[:have+n]
	r.end += int64(n)
	if err == io.EOF {
		r.over, err = true, nil
	}
	return err
}

// Close implements io.Closer.
func (r *reader) Close() error {
	r.files.giveHandle()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		return nil
	}
	return statusOf(r.stream.Close())
}
