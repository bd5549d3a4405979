// Package mux carries many connections over one stream of bytes: the serial port of a
// virtual machine, the stdio of a program that an engine executes, a connection to a guest.
//
//   - Client and Server are for a stream that ends when either of them ends.
//   - Host and Guest are for a stream that outlives both, such as a serial port: the host may
//     die at any moment and another one take its place, which the guest then follows.
//
// The side that opens a connection names a port on the other side; see Connect.
package mux

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

// A Session is one end of a stream that carries connections. All methods may be called at once.
type Session struct{ s *yamux.Session }

// Client returns the end of conn that opens connections. It owns conn from then on, and
// does not wait for the other end.
func Client(conn io.ReadWriteCloser) (*Session, error) {
	s, err := yamux.Client(&frames{ReadWriteCloser: conn}, yamuxConfig(0))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Session{s}, nil
}

// Server returns the end of conn that accepts connections. It owns conn from then on. If the other
// end does not answer for silence, Server closes the session: the other end must have died without
// ending conn; 0 means never.
func Server(conn io.ReadWriteCloser, silence time.Duration) (*Session, error) {
	s, err := yamux.Server(&frames{ReadWriteCloser: conn}, yamuxConfig(silence))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Session{s}, nil
}

// Open opens a connection, which has CloseWrite. It does not wait for the other end.
func (s *Session) Open() (net.Conn, error) {
	c, err := s.s.OpenStream()
	if err != nil {
		return nil, err
	}
	return &stream{Stream: c}, nil
}

// Close ends all connections, and the stream.
func (s *Session) Close() error { return s.s.Close() }

// Closed reports whether the stream has ended.
func (s *Session) Closed() bool { return s.s.IsClosed() }

// Done returns a channel that is closed when the stream has ended.
func (s *Session) Done() <-chan struct{} { return s.s.CloseChan() }

// Listen returns a listener that accepts the connections of the other end until it is closed, which
// leaves existing connections alone.
func (s *Session) Listen() net.Listener {
	ctx, cancel := context.WithCancel(context.Background())
	return listener{s.s, ctx, cancel}
}

type listener struct {
	*yamux.Session
	ctx   context.Context
	close context.CancelFunc
}

func (l listener) Close() error {
	l.close()
	return nil
}

func (l listener) Accept() (net.Conn, error) {
	s, err := l.AcceptStreamWithContext(l.ctx)
	if err != nil {
		return nil, err
	}
	return &stream{Stream: s}, nil
}

// yamuxConfig returns a configuration for a connection within one computer: it loses nothing, and
// its window is large enough to keep both ends busy.
func yamuxConfig(silence time.Duration) *yamux.Config {
	c := yamux.DefaultConfig()
	if c.EnableKeepAlive = silence > 0; c.EnableKeepAlive {
		c.KeepAliveInterval = silence / 2 // then yamux sends a ping, whose answer may take as long
		c.ConnectionWriteTimeout = silence / 2
	}
	c.MaxStreamWindowSize = 4 << 20
	c.StreamOpenTimeout = 0
	c.LogOutput = io.Discard
	return c
}

// A stream is a yamux stream. The Close of yamux lets the other side go on sending, like CloseWrite
// of other connections, and readers wait for that.
type stream struct {
	*yamux.Stream
	late atomic.Bool // a Write met the end of the session
}

// Write implements io.Writer. yamux does not report whether data of a Write at the end of the
// session has arrived and been answered. As with TCP the first such Write succeeds, and a Read
// returns the error.
func (s *stream) Write(b []byte) (int, error) {
	n, err := s.Stream.Write(b)
	if errors.Is(err, yamux.ErrSessionShutdown) && !s.late.Swap(true) {
		return len(b), nil
	}
	return n, err
}

// Close ends a Read, too.
func (s *stream) Close() error {
	return errors.Join(s.SetReadDeadline(time.Unix(1, 0)), s.Stream.Close())
}

func (s *stream) CloseWrite() error { return s.Stream.Close() }

// IsEnd reports whether err is the error of a session whose stream was closed.
func IsEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, yamux.ErrSessionShutdown) }
