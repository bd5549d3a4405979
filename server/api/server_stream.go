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
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

const (
	helloTimeout   = 10 * time.Second // for the first message of a client
	controlTimeout = 10 * time.Second // for a signal or resize from a client
	killTimeout    = 10 * time.Second
	pingEvery      = 30 * time.Second // detects lost clients, and keeps proxies from closing idle connections
	pingTimeout    = 20 * time.Second
)

// A serverStream is the server's side of a stream connection. Its ctx ends when the client
// disconnects or the handler closes.
type serverStream struct {
	*wire.StreamConn
	ctx       context.Context
	cancel    context.CancelCauseFunc
	requestID string
	readWork  sync.WaitGroup
	process   atomic.Pointer[atoll.Process] // the target of signals and resizes; nil before the start

	controlWork sync.WaitGroup // one goroutine while controls is not empty
	controlsMu  sync.Mutex
	controls    []wire.Message // queued signals and resizes
	controlling bool           // the goroutine runs
}

// errClientLeft is the error of a client that closed the stream.
var errClientLeft = atoll.Errorf("", "", atoll.ErrStopped, "the client has closed the stream")

// serveStream upgrades the request to a stream connection and runs serve with the client's first
// message. serve sends the last message, unless it returns an error: then serveStream sends the
// error.
func (h *Handler) serveStream(w http.ResponseWriter, r *http.Request, serve func(s *serverStream, first wire.Message) error) error {
	if r.Header.Get(wire.FirstHeader) != "" {
		w.Header().Set(wire.FirstHeader, "taken")
	}
	ctx, ws, done, err := h.webSocket(w, r)
	if err != nil {
		return err
	}
	defer done()
	s := &serverStream{StreamConn: wire.NewStreamConn(ws), requestID: wire.RequestID(ctx)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(nil)
	defer s.readWork.Wait()
	defer func() { _ = ws.CloseNow() }() // the reader may have closed the stream and not yet ended ctx
	defer context.AfterFunc(s.ctx, s.closeOnCancel)()
	defer wire.KeepAlive(s.ctx, ws, pingEvery, pingTimeout)()
	return alreadyAnswered(s.finishStream(s.runStream(r.Header, h.opts.MaxBody, serve)))
}

// webSocket upgrades the request to a WebSocket, if it comes from a page that Options.Origins admits or
// from no page. ctx ends with the handler. The caller must call done.
func (h *Handler) webSocket(w http.ResponseWriter, r *http.Request) (ctx context.Context, ws *websocket.Conn, done func(), err error) {
	if ctx, done, err = h.beginStream(w, r); err != nil {
		return nil, nil, nil, err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		done()
		return nil, nil, nil, invalidError("this operation is a WebSocket: request an upgrade")
	}
	if !h.opts.Origins.Admits(r) {
		done()
		return nil, nil, nil, originError(r)
	}
	// The origin has been checked.
	ws, err = websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}, InsecureSkipVerify: true})
	if err != nil { // Accept has sent the response
		done()
		return nil, nil, nil, alreadyAnswered(atoll.E("", "", atoll.ErrInvalid, err))
	}
	return ctx, ws, done, nil
}

// runStream reads the first message, which may be in the header of the request, and calls serve.
func (s *serverStream) runStream(h http.Header, maxFirst int64, serve func(s *serverStream, first wire.Message) error) error {
	var first wire.Message
	ok, err := s.DecodeFirst(h, &first)
	if !ok {
		hello := time.AfterFunc(helloTimeout, func() { _ = s.WS.CloseNow() })
		err = s.ReadFirst(&first, maxFirst)
		hello.Stop()
	}
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
	s.CloseWriters(wire.ErrClosing)
	time.AfterFunc(closeGrace, func() { _ = s.WS.CloseNow() }) // no effect if the stream has ended
}

// finishStream sends err, if any, as the last message and closes the connection.
func (s *serverStream) finishStream(err error) error {
	if gone := s.CloseError(); gone != nil {
		return gone
	}
	code := websocket.StatusNormalClosure
	if _, ok := errors.AsType[wire.ProtocolError](err); ok {
		code = websocket.StatusPolicyViolation
	}
	ended := s.ctx.Err() != nil && errors.Is(err, context.Canceled) || errors.Is(err, wire.ErrClosing)
	if reason := endReason(s.ctx); ended && errors.Is(reason, errKeyEnded) {
		err, code = reason, websocket.StatusPolicyViolation
	} else if ended {
		err, code = wire.ErrClosing, websocket.StatusGoingAway
		if p := s.process.Load(); p != nil {
			err = closingError(*p)
		}
	}
	if err != nil {
		w := wire.EncodeError(err, s.requestID)
		_ = s.SendMessage(wire.Message{Type: wire.MsgError, Error: &w}) // fails if the client has disconnected
	}
	if code == websocket.StatusGoingAway {
		s.CloseWithError(wire.ErrClosing) // the client may send the rest of its input to another server
	}
	s.CloseWithError(wire.ErrEnded)
	_ = s.WS.Close(code, "")
	return err
}

// outputWriters returns the writers for the streams that the client requests. They block until
// startOutput.
func (s *serverStream) outputWriters(m wire.Message) (stdout, stderr io.Writer) {
	if m.Joint {
		both := s.OpenWriter(wire.ChanStdout)
		return both, both
	}
	if m.Stdout {
		stdout = s.OpenWriter(wire.ChanStdout)
	}
	if m.Stderr {
		stderr = s.OpenWriter(wire.ChanStderr)
	}
	return stdout, stderr
}

// startOutput sends m and then lets the output flow.
func (s *serverStream) startOutput(m wire.Message) error {
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
			if _, wrong := errors.AsType[wire.ProtocolError](err); !wrong {
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
	if wrong, ok := errors.AsType[wire.ProtocolError](err); ok {
		s.CloseWithError(wrong)
		_ = s.WS.Close(websocket.StatusPolicyViolation, closeReason(wrong))
	}
	gone := wire.ErrClientLost
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
func (s *serverStream) queueControl(m wire.Message) error {
	isSignal, isResize := m.Type == wire.MsgSignal && m.Signal != nil, m.Type == wire.MsgResize && m.Size != nil
	if s.process.Load() == nil || !isSignal && !isResize {
		return wire.ProtocolErrorf("unexpected message %q", m.Type)
	}
	s.controlsMu.Lock()
	defer s.controlsMu.Unlock()
	last := len(s.controls) - 1
	switch {
	case isResize && last >= 0 && s.controls[last].Type == wire.MsgResize:
		s.controls[last] = m
		return nil
	case len(s.controls) == maxControls:
		return wire.ProtocolErrorf("more than %d queued signals", maxControls)
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
func (s *serverStream) runControl(m wire.Message) {
	ctx, cancel := context.WithTimeout(s.ctx, controlTimeout)
	defer cancel()
	p := *s.process.Load()
	var err error
	if m.Type == wire.MsgSignal {
		err = p.Signal(ctx, *m.Signal)
	} else {
		err = atoll.Resize(ctx, p, *m.Size)
	}
	if err != nil {
		w := wire.EncodeError(err, s.requestID)
		_ = s.SendMessage(wire.Message{Type: wire.MsgRefused, Error: &w}) // fails if the client has disconnected
	}
}
