//go:build linux

package image

import (
	"context"
	"errors"
	"hash"
	"io"
)

// A stream reads and hashes an io.Reader in a goroutine of its own, a few chunks ahead
// of its consumer: otherwise decompression and the writing of files would take turns.
type stream struct {
	full, empty chan []byte
	stop        chan struct{}
	done        chan struct{} // closed when n and err are set
	n           int64
	err         error // io.EOF at the end

	rest, buf []byte // unread part of the current chunk, and its whole buffer
}

const (
	chunkSize = 256 << 10
	chunks    = 4
)

// readAhead returns a stream of r that fails with errOverLimit after more than limit
// bytes, unless limit is negative. It adds all bytes to sum.
func readAhead(ctx context.Context, r io.Reader, sum hash.Hash, limit int64) *stream {
	s := &stream{
		full: make(chan []byte, chunks), empty: make(chan []byte, chunks),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	for range chunks {
		s.empty <- make([]byte, chunkSize)
	}
	go s.readChunks(ctx, r, sum, limit)
	return s
}

func (s *stream) readChunks(ctx context.Context, r io.Reader, sum hash.Hash, limit int64) {
	defer close(s.done)
	defer close(s.full)
	for {
		var buf []byte
		select {
		case buf = <-s.empty:
		case <-s.stop:
			return
		}
		n, err := readFull(r, buf)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		s.n += int64(n)
		if limit >= 0 && s.n > limit {
			n, err = 0, errOverLimit
		}
		sum.Write(buf[:n])
		s.full <- buf[:n] // the channel has room for all buffers
		if err != nil {
			s.err = err
			return
		}
	}
}

// readFull reads until buf is full or r has an error, which it returns unchanged.
func readFull(r io.Reader, buf []byte) (int, error) {
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
			s.empty <- s.buf // the channel has room for all buffers
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

// failureCause returns the reason why a consumer of the stream failed with err: the
// failure of the stream if it had one, else err.
func (s *stream) failureCause(err error) error {
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
	return newDamageError(s.err, "cannot be decompressed")
}

// close stops the goroutine and waits for its end.
func (s *stream) close() {
	close(s.stop)
	<-s.done
}
