package sshd

import (
	"io"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// A reader is a file that is being read. Clients ask for many pieces at once,
// which come in nearly the order of the file; an FS gives a stream. So the reader
// keeps the last part of the stream for those who come late, and reads on for
// those who come early; who goes anywhere else gets a new stream.
type reader struct {
	files *files
	name  string

	mu     sync.Mutex
	stream io.ReadCloser
	buf    []byte // the last that came of it
	end    int64  // offset in the file of what comes next
	over   bool   // the file ends there
}

const (
	readChunk = 64 << 10  // that is asked of a stream at once
	maxEarly  = 256 << 10 // how far ahead of the stream a piece may be; the library works on eight of 32 KiB
	maxKept   = 512 << 10 // how much is kept for late ones; half of that always
)

// ReadAt implements io.ReaderAt.
func (r *reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, atoll.ErrInvalid
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if off < r.end-int64(len(r.buf)) || off > r.end+maxEarly {
		if err := r.seek(off); err != nil {
			return 0, status(err)
		}
	}
	for !r.over && r.end < off+int64(len(p)) {
		if err := r.more(); err != nil {
			return 0, status(err)
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

// seek begins a stream at off.
func (r *reader) seek(off int64) error {
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

// more reads on.
func (r *reader) more() error {
	if r.stream == nil { // the last seek has failed
		if err := r.seek(r.end); err != nil {
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
	r.files.give()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		return nil
	}
	return status(r.stream.Close())
}
