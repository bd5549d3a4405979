package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// A client that can reconnect pings more often than the server.
const (
	pingEvery   = 5 * time.Second
	pingTimeout = 5 * time.Second
)

// A processStream is the client's side of a stream connection.
type processStream struct {
	*wire.StreamConn
	done chan struct{} // closed when last and err are final and all output was delivered
	last wire.Message
	err  error

	delivery          sync.WaitGroup
	leaveOnWriteError bool // leave the stream if a writer fails
	writeErrMu        sync.Mutex
	writeErr          error // the first error of a writer
}

// openStream opens a stream connection, sends the first message and waits for the reply. ctx bounds
// only this.
func (c *Client) openStream(ctx context.Context, q call, first wire.Message, stdin io.Reader, stdout, stderr io.Writer,
	onGap func(s atoll.Stream, from, to int64)) (*processStream, wire.Message, error) {
	if err := c.beginWork(); err != nil {
		return nil, wire.Message{}, atoll.E(q.op, q.id, atoll.ErrUnavailable, err)
	}
	defer c.work.Done()
	first.Stdout, first.Stderr = stdout != nil, stderr != nil
	first.Joint = stdout != nil && sameWriter(stdout, stderr)
	ws, taken, err := c.webSocket(ctx, q, &first)
	if err != nil {
		return nil, wire.Message{}, err
	}
	stream := &processStream{StreamConn: wire.NewStreamConn(ws), done: make(chan struct{}), leaveOnWriteError: first.Type == wire.MsgAttach}
	ws.SetReadLimit(wire.MaxMessage + 1)
	if stdin != nil {
		stream.OpenWriter(wire.ChanStdin)
	}
	if stdout != nil {
		stream.OpenReader(wire.ChanStdout)
	}
	if stderr != nil && !first.Joint {
		stream.OpenReader(wire.ChanStderr)
	}
	reply, err := stream.sendFirst(ctx, q, first, taken)
	if err != nil {
		_ = ws.CloseNow()
		return nil, wire.Message{}, c.openError(ctx, q, err)
	}
	stream.copyStreams(c, first.Joint, stdin, stdout, stderr, onGap)
	return stream, reply, nil
}

// openError returns the error of a stream connection that could not be opened.
func (c *Client) openError(ctx context.Context, q call, err error) error {
	if _, ok := err.(*atoll.Error); ok {
		return ctxErr(ctx, err)
	}
	if websocket.CloseStatus(err) == websocket.StatusMessageTooBig {
		return atoll.Errorf(q.op, q.id, atoll.ErrInvalid, "the command is larger than the server accepts")
	}
	return c.wrapConnError(ctx, q.op, q.id, err)
}

// sendFirst sends the first message, unless the server has taken it, and returns the reply of the server. It returns an error in the
// reply as its error.
func (s *processStream) sendFirst(ctx context.Context, q call, first wire.Message, taken bool) (wire.Message, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.WS.CloseNow() })
	defer stop()
	if !taken {
		if err := s.SendMessage(first); err != nil {
			return wire.Message{}, err
		}
	}
	reply, err := s.ReadMessage(false)
	if err == nil && reply.Type == wire.MsgError && reply.Error != nil {
		err = reply.Error.ToError(q.op, q.id)
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	return reply, err
}

// copyStreams starts the goroutines that copy the streams.
func (s *processStream) copyStreams(c *Client, joint bool, stdin io.Reader, stdout, stderr io.Writer, onGap func(atoll.Stream, int64, int64)) {
	if stdin != nil {
		s.Writers[wire.ChanStdin].OpenWindow()
		go s.sendStdin(stdin)
	}
	if stdout != nil {
		s.deliverOutput(wire.ChanStdout, stdout, onGap)
	}
	if stderr != nil && !joint {
		s.deliverOutput(wire.ChanStderr, stderr, onGap)
	}
	c.work.Add(1)
	go func() {
		stop := context.AfterFunc(c.ctx, func() { _ = s.WS.CloseNow() })
		stopPings := func() {}
		if c.opts.Patience > 0 {
			stopPings = wire.KeepAlive(c.ctx, s.WS, pingEvery, pingTimeout)
		}
		s.readMessages(joint)
		stopPings()
		stop()
		c.work.Done()
		s.delivery.Wait()
		close(s.done)
	}()
}

func (s *processStream) deliverOutput(ch byte, w io.Writer, onGap func(atoll.Stream, int64, int64)) {
	s.delivery.Go(func() {
		if err := s.Readers[ch].DeliverTo(w, onGap); err != nil {
			s.recordWriteError(err)
		}
	})
}

func (s *processStream) recordWriteError(err error) {
	s.writeErrMu.Lock()
	if s.writeErr == nil {
		s.writeErr = err
	}
	s.writeErrMu.Unlock()
	if s.leaveOnWriteError {
		s.leaveStream(err)
	}
}

// leaveTimeout is the time for a server to confirm the close of a WebSocket.
const leaveTimeout = time.Second

// leaveStream starts to close the stream and does not block. If err means that a reader lost its
// connection, the server does not learn that the client left, and retains output.
func (s *processStream) leaveStream(err error) {
	if wire.IsConnLoss(err) {
		_ = s.WS.CloseNow()
		return
	}
	go func() {
		late := time.AfterFunc(leaveTimeout, func() { _ = s.WS.CloseNow() })
		defer late.Stop()
		_ = s.WS.Close(websocket.StatusNormalClosure, "") // waits for the server's close frame, or for late
	}()
}

// writerError returns the first error of a writer.
func (s *processStream) writerError() error {
	s.writeErrMu.Lock()
	defer s.writeErrMu.Unlock()
	return s.writeErr
}

// readMessages reads until the last message of the server.
func (s *processStream) readMessages(joint bool) {
	defer s.WS.CloseNow()
	for {
		m, err := s.ReadMessage(false)
		if err != nil {
			s.err = err
			s.CloseWithError(err)
			return
		}
		switch m.Type {
		case wire.MsgExit, wire.MsgEnd, wire.MsgError:
			s.last = m
			s.finishOutput()
			return
		case wire.MsgGap:
			s.recordGap(m, joint)
		}
	}
}

// finishOutput ends the output after the last message.
func (s *processStream) finishOutput() {
	for _, f := range s.Readers {
		if f != nil {
			f.CloseWithError(io.EOF)
		}
	}
	s.CloseWithError(wire.ErrEnded)
}

func (s *processStream) recordGap(m wire.Message, joint bool) {
	ch, ok := wire.ChannelOf(m.Stream)
	if joint {
		ch = wire.ChanStdout
	}
	if ok && m.Gap != nil && s.Readers[ch] != nil {
		s.Readers[ch].AddGap(m.Stream, *m.Gap)
	}
}

// sendStdin copies stdin to the process. No goroutine waits for it, because it may block in the
// caller's Reader.
func (s *processStream) sendStdin(stdin io.Reader) {
	buf := wire.ChunkPool.Get().(*[wire.ChunkSize]byte)
	defer wire.ChunkPool.Put(buf)
	for {
		n, err := stdin.Read(buf[:])
		if n > 0 {
			if _, err := s.Writers[wire.ChanStdin].Write(buf[:n]); err != nil {
				return
			}
		}
		if errors.Is(err, wire.ErrClosing) {
			return // another connection may send the rest
		}
		if err != nil {
			_ = s.SendMessage(wire.Message{Type: wire.MsgClose, Stream: wire.ChannelNames[wire.ChanStdin], Abort: err != io.EOF})
			return
		}
	}
}

// sameWriter reports whether a and b are equal. Writers of an incomparable type are not equal.
func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }()
	return a == b
}
