package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

const (
	helloTimeout   = 10 * time.Second // for the first message of a client
	controlTimeout = 10 * time.Second // for a signal or resize from a client
	killTimeout    = 10 * time.Second
	pingEvery      = 30 * time.Second // detects lost clients, and keeps proxies from closing idle connections
	pingTimeout    = 20 * time.Second
)

// A client that can reconnect pings more often than the server.
const (
	clientPingEvery   = 5 * time.Second
	clientPingTimeout = 5 * time.Second
)

// A serverStream is the server's side of a stream connection. Its ctx ends when the client
// disconnects or the handler closes.
type serverStream struct {
	*streamConn
	ctx       context.Context
	cancel    context.CancelCauseFunc
	requestID string
	readWork  sync.WaitGroup
	process   atomic.Pointer[atoll.Process] // the target of signals and resizes; nil before the start

	controlWork sync.WaitGroup // one goroutine while controls is not empty
	controlsMu  sync.Mutex
	controls    []message // queued signals and resizes
	controlling bool      // the goroutine runs
}

// isConnLoss reports whether err means that the reader of a stream lost its connection and may
// reconnect.
func isConnLoss(err error) bool {
	return atoll.KindOf(err) == atoll.ErrUnavailable && !errors.Is(err, context.Canceled)
}

// errClientLost is the error of a client that disconnected and may reconnect for the output that did
// not reach it.
var errClientLost = atoll.Errorf("", "", atoll.ErrUnavailable, "the client has disconnected")

// errClientLeft is the error of a client that closed the stream.
var errClientLeft = atoll.Errorf("", "", atoll.ErrStopped, "the client has closed the stream")

// serveStream upgrades the request to a stream connection and runs serve with the client's first
// message. serve sends the last message, unless it returns an error: then serveStream sends the
// error.
func (h *Handler) serveStream(w http.ResponseWriter, r *http.Request, serve func(s *serverStream, first message) error) error {
	ctx, ws, done, err := h.webSocket(w, r)
	if err != nil {
		return err
	}
	defer done()
	s := &serverStream{streamConn: newStreamConn(ws), requestID: RequestID(ctx)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(nil)
	defer s.readWork.Wait()
	defer func() { _ = ws.CloseNow() }() // the reader may have closed the stream and not yet ended ctx
	defer context.AfterFunc(s.ctx, s.closeOnCancel)()
	defer keepAlive(s.ctx, ws, pingEvery, pingTimeout)()
	return alreadyAnswered(s.finishStream(s.runStream(h.opts.MaxBody, serve)))
}

// webSocket upgrades the request to a WebSocket, if it comes from a page of the same origin or from
// no page. ctx ends with the handler. The caller must call done.
func (h *Handler) webSocket(w http.ResponseWriter, r *http.Request) (ctx context.Context, ws *websocket.Conn, done func(), err error) {
	if ctx, done, err = h.beginStream(w, r); err != nil {
		return nil, nil, nil, err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		done()
		return nil, nil, nil, invalidError("this operation is a WebSocket: request an upgrade")
	}
	ws, err = websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}})
	if err != nil { // Accept has sent the response
		done()
		return nil, nil, nil, alreadyAnswered(atoll.E("", "", atoll.ErrInvalid, err))
	}
	return ctx, ws, done, nil
}

// runStream reads the first message and calls serve.
func (s *serverStream) runStream(maxFirst int64, serve func(s *serverStream, first message) error) error {
	var first message
	hello := time.AfterFunc(helloTimeout, func() { _ = s.WS.CloseNow() })
	err := s.ReadFirst(&first, maxFirst)
	hello.Stop()
	if err != nil {
		return err
	}
	return serve(s, first)
}

// closeOnCancel closes the connection after ctx has ended: at once if the client has disconnected.
// If the handler closes, writes of output fail at once, and finishStream has closeGrace to send the
// last message.
func (s *serverStream) closeOnCancel() {
	if s.CloseError() != nil {
		_ = s.WS.CloseNow()
		return
	}
	s.CloseWriters(errClosing)
	time.AfterFunc(closeGrace, func() { _ = s.WS.CloseNow() }) // no effect if the stream has ended
}

// finishStream sends err, if any, as the last message and closes the connection.
func (s *serverStream) finishStream(err error) error {
	if gone := s.CloseError(); gone != nil {
		return gone
	}
	code := websocket.StatusNormalClosure
	if _, ok := errors.AsType[protocolError](err); ok {
		code = websocket.StatusPolicyViolation
	}
	if s.ctx.Err() != nil && errors.Is(err, context.Canceled) || errors.Is(err, errClosing) {
		err, code = errClosing, websocket.StatusGoingAway
		if p := s.process.Load(); p != nil {
			err = closingError(*p)
		}
	}
	if err != nil {
		w := encodeError(err, s.requestID)
		_ = s.SendMessage(message{Type: msgError, Error: &w}) // fails if the client has disconnected
	}
	if code == websocket.StatusGoingAway {
		s.CloseWithError(errClosing) // the client may send the rest of its input to another server
	}
	s.CloseWithError(errEnded)
	_ = s.WS.Close(code, "")
	return err
}

var errEnded = errors.New("the process has ended")

// outputWriters returns the writers for the streams that the client requests. They block until
// startOutput.
func (s *serverStream) outputWriters(m message) (stdout, stderr io.Writer) {
	if m.Joint {
		both := s.OpenWriter(chanStdout)
		return both, both
	}
	if m.Stdout {
		stdout = s.OpenWriter(chanStdout)
	}
	if m.Stderr {
		stderr = s.OpenWriter(chanStderr)
	}
	return stdout, stderr
}

// startOutput sends m and then lets the output flow.
func (s *serverStream) startOutput(m message) error {
	if err := s.SendMessage(m); err != nil {
		return err
	}
	for _, f := range s.Writers {
		if f != nil {
			f.OpenWindow()
		}
	}
	return nil
}

// startReading starts the goroutine that reads the client's further messages.
func (s *serverStream) startReading() {
	s.readWork.Go(func() {
		for {
			m, err := s.ReadMessage(true)
			if err == nil {
				err = s.queueControl(m)
			}
			if err == nil {
				continue
			}
			if _, wrong := errors.AsType[protocolError](err); !wrong {
				s.controlWork.Wait() // runs the controls that the client sent before
			}
			s.hangUp(err)
			s.controlWork.Wait()
			return
		}
	})
}

// hangUp ends the stream with err, the error of reading the connection.
func (s *serverStream) hangUp(err error) {
	if wrong, ok := errors.AsType[protocolError](err); ok {
		s.CloseWithError(wrong)
		_ = s.WS.Close(websocket.StatusPolicyViolation, closeReason(wrong))
	}
	gone := errClientLost
	if code := websocket.CloseStatus(err); code == websocket.StatusNormalClosure || code == websocket.StatusGoingAway {
		gone = errClientLeft
	}
	s.CloseWithError(gone)
	s.cancel(gone)
}

// closeReason returns the part of the text of err that fits into a close frame.
func closeReason(err error) string {
	const most = 120
	reason := err.Error()
	if len(reason) > most {
		reason = strings.ToValidUTF8(reason[:most], "")
	}
	return reason
}

// setProcess makes p the target of the client's signals and resizes.
func (s *serverStream) setProcess(p atoll.Process) { s.process.Store(&p) }

// maxControls is the largest number of queued signals and resizes of a client.
const maxControls = 64

// queueControl queues a signal or resize, because the goroutine that reads the connection must not
// wait for a process. A resize replaces one at the end of the queue.
func (s *serverStream) queueControl(m message) error {
	isSignal, isResize := m.Type == msgSignal && m.Signal != nil, m.Type == msgResize && m.Size != nil
	if s.process.Load() == nil || !isSignal && !isResize {
		return protocolErrorf("unexpected message %q", m.Type)
	}
	s.controlsMu.Lock()
	defer s.controlsMu.Unlock()
	last := len(s.controls) - 1
	switch {
	case isResize && last >= 0 && s.controls[last].Type == msgResize:
		s.controls[last] = m
		return nil
	case len(s.controls) == maxControls:
		return protocolErrorf("more than %d queued signals", maxControls)
	}
	s.controls = append(s.controls, m)
	if !s.controlling {
		s.controlling = true
		s.controlWork.Go(s.runControls)
	}
	return nil
}

// runControls runs the queued controls until there are none.
func (s *serverStream) runControls() {
	for {
		s.controlsMu.Lock()
		if len(s.controls) == 0 {
			s.controlling = false
			s.controlsMu.Unlock()
			return
		}
		m := s.controls[0]
		s.controls = s.controls[1:]
		s.controlsMu.Unlock()
		s.runControl(m)
	}
}

// runControl runs a signal or resize. It reports a failure to the client, and the stream continues.
func (s *serverStream) runControl(m message) {
	ctx, cancel := context.WithTimeout(s.ctx, controlTimeout)
	defer cancel()
	p := *s.process.Load()
	var err error
	if m.Type == msgSignal {
		err = p.Signal(ctx, *m.Signal)
	} else {
		err = atoll.Resize(ctx, p, *m.Size)
	}
	if err != nil {
		w := encodeError(err, s.requestID)
		_ = s.SendMessage(message{Type: msgRefused, Error: &w}) // fails if the client has disconnected
	}
}

// keepAlive pings the other side at intervals until stop is called. It closes the connection if no
// pong arrives in time.
func keepAlive(ctx context.Context, ws *websocket.Conn, every, patience time.Duration) (stop func()) {
	var timer *time.Timer
	set := make(chan struct{})
	timer = time.AfterFunc(every, func() {
		<-set
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if ws.Ping(ctx) != nil {
			_ = ws.CloseNow()
			return
		}
		timer.Reset(every)
	})
	close(set)
	return func() { timer.Stop() }
}

// A clientStream is the client's side of a stream connection.
type clientStream struct {
	*streamConn
	done chan struct{} // closed when last and err are final and all output was delivered
	last message
	err  error

	delivery          sync.WaitGroup
	leaveOnWriteError bool // leave the stream if a writer fails
	writeErrMu        sync.Mutex
	writeErr          error // the first error of a writer
}

// openStream opens a stream connection, sends the first message and waits for the reply. ctx bounds
// only this.
func (c *Client) openStream(ctx context.Context, q call, first message, stdin io.Reader, stdout, stderr io.Writer,
	onGap func(s atoll.Stream, from, to int64)) (*clientStream, message, error) {
	if err := c.beginWork(); err != nil {
		return nil, message{}, atoll.E(q.op, q.id, atoll.ErrUnavailable, err)
	}
	defer c.work.Done()
	ws, err := c.webSocket(ctx, q)
	if err != nil {
		return nil, message{}, err
	}
	r := &clientStream{streamConn: newStreamConn(ws), done: make(chan struct{}), leaveOnWriteError: first.Type == msgAttach}
	ws.SetReadLimit(maxMessage + 1)
	first.Stdout, first.Stderr = stdout != nil, stderr != nil
	first.Joint = stdout != nil && sameWriter(stdout, stderr)
	if stdin != nil {
		r.OpenWriter(chanStdin)
	}
	if stdout != nil {
		r.OpenReader(chanStdout)
	}
	if stderr != nil && !first.Joint {
		r.OpenReader(chanStderr)
	}
	reply, err := r.sendFirst(ctx, q, first)
	if err != nil {
		_ = ws.CloseNow()
		return nil, message{}, c.openError(ctx, q, err)
	}
	r.copyStreams(c, first.Joint, stdin, stdout, stderr, onGap)
	return r, reply, nil
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

// sendFirst sends the first message and returns the reply of the server. It returns an error in the
// reply as its error.
func (r *clientStream) sendFirst(ctx context.Context, q call, first message) (message, error) {
	stop := context.AfterFunc(ctx, func() { _ = r.WS.CloseNow() })
	defer stop()
	if err := r.SendMessage(first); err != nil {
		return message{}, err
	}
	reply, err := r.ReadMessage(false)
	if err == nil && reply.Type == msgError && reply.Error != nil {
		err = reply.Error.ToError(q.op, q.id)
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	return reply, err
}

// copyStreams starts the goroutines that copy the streams.
func (r *clientStream) copyStreams(c *Client, joint bool, stdin io.Reader, stdout, stderr io.Writer, onGap func(atoll.Stream, int64, int64)) {
	if stdin != nil {
		r.Writers[chanStdin].OpenWindow()
		go r.sendStdin(stdin)
	}
	if stdout != nil {
		r.deliverOutput(chanStdout, stdout, onGap)
	}
	if stderr != nil && !joint {
		r.deliverOutput(chanStderr, stderr, onGap)
	}
	c.work.Add(1)
	go func() {
		stop := context.AfterFunc(c.ctx, func() { _ = r.WS.CloseNow() })
		stopPings := func() {}
		if c.opts.Patience > 0 {
			stopPings = keepAlive(c.ctx, r.WS, clientPingEvery, clientPingTimeout)
		}
		r.readMessages(joint)
		stopPings()
		stop()
		c.work.Done()
		r.delivery.Wait()
		close(r.done)
	}()
}

func (r *clientStream) deliverOutput(ch byte, w io.Writer, onGap func(atoll.Stream, int64, int64)) {
	r.delivery.Go(func() {
		if err := r.Readers[ch].DeliverTo(w, onGap); err != nil {
			r.recordWriteError(err)
		}
	})
}

func (r *clientStream) recordWriteError(err error) {
	r.writeErrMu.Lock()
	if r.writeErr == nil {
		r.writeErr = err
	}
	r.writeErrMu.Unlock()
	if r.leaveOnWriteError {
		r.leaveStream(err)
	}
}

// leaveTimeout is the time for a server to confirm the close of a WebSocket.
const leaveTimeout = time.Second

// leaveStream starts to close the stream and does not block. If err means that a reader lost its
// connection, the server does not learn that the client left, and retains output.
func (r *clientStream) leaveStream(err error) {
	if isConnLoss(err) {
		_ = r.WS.CloseNow()
		return
	}
	go func() {
		late := time.AfterFunc(leaveTimeout, func() { _ = r.WS.CloseNow() })
		defer late.Stop()
		_ = r.WS.Close(websocket.StatusNormalClosure, "") // waits for the server's close frame, or for late
	}()
}

// writerError returns the first error of a writer.
func (r *clientStream) writerError() error {
	r.writeErrMu.Lock()
	defer r.writeErrMu.Unlock()
	return r.writeErr
}

// readMessages reads until the last message of the server.
func (r *clientStream) readMessages(joint bool) {
	defer r.WS.CloseNow()
	for {
		m, err := r.ReadMessage(false)
		if err != nil {
			r.err = err
			r.CloseWithError(err)
			return
		}
		switch m.Type {
		case msgExit, msgEnd, msgError:
			r.last = m
			r.finishOutput()
			return
		case msgGap:
			r.recordGap(m, joint)
		}
	}
}

// finishOutput ends the output after the last message.
func (r *clientStream) finishOutput() {
	for _, f := range r.Readers {
		if f != nil {
			f.CloseWithError(io.EOF)
		}
	}
	r.CloseWithError(errEnded)
}

func (r *clientStream) recordGap(m message, joint bool) {
	ch, ok := channelOf(m.Stream)
	if joint {
		ch = chanStdout
	}
	if ok && m.Gap != nil && r.Readers[ch] != nil {
		r.Readers[ch].AddGap(m.Stream, *m.Gap)
	}
}

// sendStdin copies stdin to the process. No goroutine waits for it, because it may block in the
// caller's Reader.
func (r *clientStream) sendStdin(stdin io.Reader) {
	buf := chunkPool.Get().(*[chunkSize]byte)
	defer chunkPool.Put(buf)
	for {
		n, err := stdin.Read(buf[:])
		if n > 0 {
			if _, err := r.Writers[chanStdin].Write(buf[:n]); err != nil {
				return
			}
		}
		if errors.Is(err, errClosing) {
			return // another connection may send the rest
		}
		if err != nil {
			_ = r.SendMessage(message{Type: msgClose, Stream: channelNames[chanStdin], Abort: err != io.EOF})
			return
		}
	}
}

// sameWriter reports whether a and b are equal. Writers of an incomparable type are not equal.
func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }()
	return a == b
}
