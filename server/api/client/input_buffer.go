package client

import (
	"io"
	"sync"

	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// An inputBuffer passes the data of a caller's Reader to successive connections. One goroutine
// reads ahead, and no other waits for it, because it may block in the Reader.
type inputBuffer struct {
	r io.Reader

	mu      sync.Mutex
	changed sync.Cond
	ahead   []byte // read and not sent
	err     error  // why the Reader has no more data
	closed  bool
	sent    int64        // bytes sent over all connections
	ended   bool         // the end of the input was sent
	current *inputReader // the reader of the current connection
}

func newInputBuffer(r io.Reader) *inputBuffer {
	in := &inputBuffer{r: r}
	in.changed.L = &in.mu
	return in
}

// nextReader returns the reader for the next connection, or nil if all input was sent. The first
// call starts to read.
func (in *inputBuffer) nextReader() io.Reader {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return nil
	}
	begun := in.current != nil
	in.current = &inputReader{in}
	in.changed.Broadcast()
	if !begun {
		go in.readAhead()
	}
	return in.current
}

// detachReader ends the current reader and returns the number of bytes sent so far, and whether the
// end was sent.
func (in *inputBuffer) detachReader() (sent int64, ended bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.current = &inputReader{in}
	in.changed.Broadcast()
	return in.sent, in.ended
}

// closeInput ends the buffer and its current reader.
func (in *inputBuffer) closeInput() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.changed.Broadcast()
}

// readAhead fills ahead whenever it is empty.
func (in *inputBuffer) readAhead() {
	buf := make([]byte, wire.ChunkSize)
	for {
		n, err := in.r.Read(buf)
		in.mu.Lock()
		in.ahead, in.err = buf[:n], err
		in.changed.Broadcast()
		for len(in.ahead) > 0 && !in.closed {
			in.changed.Wait()
		}
		over := in.err != nil || in.closed
		in.mu.Unlock()
		if over {
			return
		}
	}
}

// An inputReader is the part of an inputBuffer that one connection reads.
type inputReader struct{ in *inputBuffer }

// Read implements io.Reader.
func (r *inputReader) Read(p []byte) (int, error) {
	in := r.in
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.current == r && !in.closed && len(in.ahead) == 0 && in.err == nil {
		in.changed.Wait()
	}
	switch {
	case in.current != r || in.closed:
		return 0, wire.ErrClosing // makes sendStdin return without closing stdin
	case len(in.ahead) == 0:
		in.ended = true
		return 0, in.err
	}
	n := copy(p, in.ahead)
	in.ahead = in.ahead[n:]
	in.sent += int64(n)
	in.changed.Broadcast()
	return n, nil
}
