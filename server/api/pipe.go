package api

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const pipeNetwork = "pipe"

// A Pipe is a listener in memory, for a program that is its own client. Its connections buffer 64
// KiB each way, have deadlines and support half-close.
type Pipe struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewPipe returns a Pipe.
func NewPipe() *Pipe { return &Pipe{conns: make(chan net.Conn), closed: make(chan struct{})} }

// Accept implements net.Listener.
func (p *Pipe) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Dial returns a connection to a caller of Accept. It fits client.Options.Dial.
func (p *Pipe) Dial(ctx context.Context) (net.Conn, error) {
	near, far := newPipeConns()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements net.Listener. Existing connections stay open.
func (p *Pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *Pipe) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return pipeNetwork }
func (pipeAddr) String() string  { return pipeNetwork }

// A pipeConn is one end of a connection in memory.
type pipeConn struct{ in, out *pipeHalf }

func newPipeConns() (a, b net.Conn) {
	there, back := newPipeHalf(), newPipeHalf()
	return &pipeConn{back, there}, &pipeConn{there, back}
}

func (c *pipeConn) Read(p []byte) (int, error)  { return c.in.readBytes(p) }
func (c *pipeConn) Write(p []byte) (int, error) { return c.out.writeBytes(p) }
func (c *pipeConn) LocalAddr() net.Addr         { return pipeAddr{} }
func (c *pipeConn) RemoteAddr() net.Addr        { return pipeAddr{} }

// CloseWrite lets the other end read the written bytes and then io.EOF.
func (c *pipeConn) CloseWrite() error {
	c.out.closeWrite()
	return nil
}

func (c *pipeConn) Close() error {
	c.out.closeWrite()
	c.out.closeFor(&c.out.writer)
	c.in.closeRead()
	c.in.closeFor(&c.in.reader)
	return nil
}

func (c *pipeConn) SetDeadline(t time.Time) error {
	c.in.reader.setDeadline(c.in, t)
	c.out.writer.setDeadline(c.out, t)
	return nil
}

func (c *pipeConn) SetReadDeadline(t time.Time) error {
	c.in.reader.setDeadline(c.in, t)
	return nil
}

func (c *pipeConn) SetWriteDeadline(t time.Time) error {
	c.out.writer.setDeadline(c.out, t)
	return nil
}

const pipeSize = 64 << 10

// A pipeHalf carries bytes in one direction, through a ring buffer.
type pipeHalf struct {
	mu             sync.Mutex
	changed        sync.Cond
	buf            []byte
	start, n       int
	eof            bool // the writer has closed
	broken         bool // the reader has closed
	reader, writer pipeEnd
}

// A pipeEnd is the state of the reader or the writer of a pipeHalf.
type pipeEnd struct {
	closed  bool // closed by its owner
	expired bool
	timer   *time.Timer
	serial  int // number of the current deadline
}

func newPipeHalf() *pipeHalf {
	h := &pipeHalf{}
	h.changed.L = &h.mu
	return h
}

// checkOpen returns an error if the end is closed or its deadline has passed.
func (e *pipeEnd) checkOpen() error {
	switch {
	case e.closed:
		return net.ErrClosed
	case e.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// setDeadline sets the deadline; the zero time removes it.
func (e *pipeEnd) setDeadline(h *pipeHalf, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.serial++
	e.expired = false
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		e.expired = true
		h.changed.Broadcast()
		return
	}
	serial := e.serial
	e.timer = time.AfterFunc(left, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if e.serial == serial {
			e.expired = true
			h.changed.Broadcast()
		}
	})
}

func (h *pipeHalf) closeFor(e *pipeEnd) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	h.changed.Broadcast()
}

func (h *pipeHalf) closeWrite() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eof = true
	h.changed.Broadcast()
}

func (h *pipeHalf) closeRead() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = true
	h.buf, h.n = nil, 0
	h.changed.Broadcast()
}

func (h *pipeHalf) readBytes(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if err := h.reader.checkOpen(); err != nil {
			return 0, err
		}
		if len(p) == 0 {
			return 0, nil
		}
		if h.n > 0 {
			break
		}
		if h.eof {
			return 0, io.EOF
		}
		h.changed.Wait()
	}
	m := copy(p, h.buf[h.start:min(h.start+h.n, len(h.buf))])
	if m < len(p) && m < h.n {
		m += copy(p[m:], h.buf[:h.n-m])
	}
	h.start = (h.start + m) % len(h.buf)
	h.n -= m
	h.changed.Broadcast()
	return m, nil
}

func (h *pipeHalf) writeBytes(p []byte) (total int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.writer.checkOpen() != nil:
			return total, h.writer.checkOpen()
		case h.broken || h.eof:
			return total, io.ErrClosedPipe
		case len(p) == 0:
			return total, nil
		case h.n == pipeSize:
			h.changed.Wait()
			continue
		}
		m := h.appendBytes(p)
		total += m
		p = p[m:]
		h.changed.Broadcast()
	}
}

// appendBytes stores as much of p as fits, and returns its length.
func (h *pipeHalf) appendBytes(p []byte) int {
	p = p[:min(len(p), pipeSize-h.n)]
	if h.n+len(p) > len(h.buf) {
		h.growBuffer(h.n + len(p))
	}
	at := (h.start + h.n) % len(h.buf)
	m := copy(h.buf[at:], p)
	copy(h.buf, p[m:])
	h.n += len(p)
	return len(p)
}

func (h *pipeHalf) growBuffer(need int) {
	buf := make([]byte, min(pipeSize, max(need, 2*len(h.buf), 4<<10)))
	m := copy(buf, h.buf[h.start:min(h.start+h.n, len(h.buf))])
	copy(buf[m:], h.buf[:h.n-m])
	h.buf, h.start = buf, 0
}

var _ net.Listener = (*Pipe)(nil)
