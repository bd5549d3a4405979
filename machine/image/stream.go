//go:build linux

package image

import (
	"context"
	"errors"
	"hash"
	"io"
)

// A stream is read and hashed by a goroutine of its own, a little ahead of
// whoever reads the stream: decompressing and writing files take turns
// otherwise.
type stream struct {
	full, empty chan []byte
	stop        chan struct{}
	done        chan struct{} // closed when n and err are set
	n           int64
	err         error // io.EOF when all was read

	rest, buf []byte // rest of the chunk at hand, and all of it
}

const (
	chunkSize = 256 << 10
	chunks    = 4
)

// readAhead reads at most limit bytes from r, if limit is not negative.
func readAhead(ctx context.Context, r io.Reader, sum hash.Hash, limit int64) *stream {
	s := &stream{
		full: make(chan []byte, chunks), empty: make(chan []byte, chunks),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	for range chunks {
		s.empty <- make([]byte, chunkSize)
	}
	go s.run(ctx, r, sum, limit)
	return s
}

func (s *stream) run(ctx context.Context, r io.Reader, sum hash.Hash, limit int64) {
	defer close(s.done)
	defer close(s.full)
	for {
		var buf []byte
		select {
		case buf = <-s.empty:
		case <-s.stop:
			return
		}
		n, err := fill(r, buf)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		s.n += int64(n)
		if limit >= 0 && s.n > limit {
			n, err = 0, errOverLimit
		}
		sum.Write(buf[:n])
		s.full <- buf[:n] // has room for all there are
		if err != nil {
			s.err = err
			return
		}
	}
}

// fill reads until buf is full or r has an error, which it returns as it is.
func fill(r io.Reader, buf []byte) (int, error) {
	n := 0
	for n < len(buf) {
		k, err := r.Read(buf[n:])
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.buf != nil {
			s.empty <- s.buf // has room for all there are
			s.buf = nil
		}
		chunk, ok := <-s.full
		if !ok {
			<-s.done
			return 0, s.err
		}
		s.rest, s.buf = chunk, chunk[:cap(chunk)]
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// cause returns why the reader of the stream failed with err: the stream's own
// failure if it had one.
func (s *stream) cause(err error) error {
	select {
	case <-s.done:
	default:
		return err
	}
	switch {
	case s.err == io.EOF || s.err == nil:
		return err
	case s.err == errOverLimit, errors.Is(s.err, context.Canceled), errors.Is(s.err, context.DeadlineExceeded):
		return s.err
	}
	return damaged(s.err, "cannot be decompressed")
}

// close ends the reading and waits for it.
func (s *stream) close() {
	close(s.stop)
	<-s.done
}
