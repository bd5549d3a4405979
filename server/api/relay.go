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
	helloTimeout   = 10 * time.Second // for a client to say what it wants
	controlTimeout = 10 * time.Second // for a signal or resize that came over a link
	killTimeout    = 10 * time.Second
	pingEvery      = 30 * time.Second // to find out that the client has gone, and to keep proxies from cutting the line
	pingTimeout    = 20 * time.Second

	// A client that can go to another server finds out sooner.
	watchEvery   = 5 * time.Second
	watchTimeout = 5 * time.Second
)

// A relay is the server's side of a link. Its ctx ends when the client has
// gone or the handler closes.
type relay struct {
	*link
	ctx       context.Context
	cancel    context.CancelCauseFunc
	requestID string
	reading   sync.WaitGroup
	process   atomic.Pointer[atoll.Process] // for signals and resizes; nil before it is known

	obeying  sync.WaitGroup // one goroutine, while there are orders
	ordersMu sync.Mutex
	orders   []message // signals and resizes that wait for it
	busy     bool      // it is there
}

// isLoss reports whether err is why somebody was lost who may come again.
func isLoss(err error) bool {
	return atoll.KindOf(err) == atoll.ErrUnavailable && !errors.Is(err, context.Canceled)
}

// How a client goes: it is lost, and may come again for output that has not reached it, or
// it has said that it leaves.
var (
	errGone = atoll.Errorf("", "", atoll.ErrUnavailable, "the client has gone")
	errLeft = atoll.Errorf("", "", atoll.ErrStopped, "the client has left")
)

// relay takes over the connection and runs serve, which gets the client's
// first message and sends the last one, unless it returns an error: then that
// is the last one.
func (h *Handler) relay(w http.ResponseWriter, r *http.Request, serve func(s *relay, first message) error) error {
	ctx, ws, done, err := h.webSocket(w, r)
	if err != nil {
		return err
	}
	defer done()
	s := &relay{link: newLink(ws), requestID: RequestID(ctx)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(nil)
	defer s.reading.Wait()
	defer func() { _ = ws.CloseNow() }() // the reader may have failed the link, and not yet ended ctx
	defer context.AfterFunc(s.ctx, s.part)()
	defer keepAlive(s.ctx, ws, pingEvery, pingTimeout)()
	return answered(s.finish(s.run(h.opts.MaxBody, serve)))
}

// webSocket takes over the connection, if that comes from a page of the server's own
// or from no page. Its ctx ends with the handler; the caller calls done at its end.
func (h *Handler) webSocket(w http.ResponseWriter, r *http.Request) (ctx context.Context, ws *websocket.Conn, done func(), err error) {
	if ctx, done, err = h.stream(w, r); err != nil {
		return nil, nil, nil, err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		done()
		return nil, nil, nil, invalid("this is a WebSocket: ask for an upgrade")
	}
	ws, err = websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}})
	if err != nil { // it has answered
		done()
		return nil, nil, nil, answered(atoll.E("", "", atoll.ErrInvalid, err))
	}
	return ctx, ws, done, nil
}

func (s *relay) run(maxFirst int64, serve func(s *relay, first message) error) error {
	var first message
	hello := time.AfterFunc(helloTimeout, func() { _ = s.ws.CloseNow() })
	err := s.first(&first, maxFirst)
	hello.Stop()
	if err != nil {
		return err
	}
	return serve(s, first)
}

// part ends the connection when ctx has ended: at once where the client has
// gone. Where the handler closes finish tells the client, which may take
// closeGrace to read it, and what waits for it to read output does not.
func (s *relay) part() {
	if s.failure() != nil {
		_ = s.ws.CloseNow()
		return
	}
	s.endOutputs(errClosing)
	time.AfterFunc(closeGrace, func() { _ = s.ws.CloseNow() }) // nothing, where the relay has ended
}

// finish tells the client how it went, and closes the connection.
func (s *relay) finish(err error) error {
	if gone := s.failure(); gone != nil {
		return gone
	}
	code := websocket.StatusNormalClosure
	if _, ok := errors.AsType[protocolError](err); ok {
		code = websocket.StatusPolicyViolation
	}
	if s.ctx.Err() != nil && errors.Is(err, context.Canceled) || errors.Is(err, errClosing) {
		err, code = errClosing, websocket.StatusGoingAway
		if p := s.process.Load(); p != nil {
			err = closingOn(*p)
		}
	}
	if err != nil {
		w := encodeError(err, s.requestID)
		_ = s.send(message{Type: msgError, Error: &w}) // a client that has gone needs none
	}
	if code == websocket.StatusGoingAway {
		s.fail(errClosing) // the client may go on with its input elsewhere
	}
	s.fail(errEnded)
	_ = s.ws.Close(code, "")
	return err
}

var errEnded = errors.New("the process has ended")

// outputs are the writers that the client asks for. They block until ready.
func (s *relay) outputs(m message) (stdout, stderr io.Writer) {
	if m.Joint {
		both := s.transmit(chanStdout)
		return both, both
	}
	if m.Stdout {
		stdout = s.transmit(chanStdout)
	}
	if m.Stderr {
		stderr = s.transmit(chanStderr)
	}
	return stdout, stderr
}

// ready sends m and then lets the output flow.
func (s *relay) ready(m message) error {
	if err := s.send(m); err != nil {
		return err
	}
	for _, f := range s.out {
		if f != nil {
			f.open()
		}
	}
	return nil
}

// listen begins to read what else the client sends.
func (s *relay) listen() {
	s.reading.Go(func() {
		for {
			m, err := s.read(true)
			if err == nil {
				err = s.order(m)
			}
			if err == nil {
				continue
			}
			if _, wrong := errors.AsType[protocolError](err); !wrong {
				s.obeying.Wait() // what the client said before it went
			}
			s.hangUp(err)
			s.obeying.Wait()
			return
		}
	})
}

// hangUp ends the relay for a reason that the client knows, or has to be
// told.
func (s *relay) hangUp(err error) {
	if wrong, ok := errors.AsType[protocolError](err); ok {
		s.fail(wrong)
		_ = s.ws.Close(websocket.StatusPolicyViolation, closeReason(wrong))
	}
	gone := errGone
	if code := websocket.CloseStatus(err); code == websocket.StatusNormalClosure || code == websocket.StatusGoingAway {
		gone = errLeft
	}
	s.fail(gone)
	s.cancel(gone)
}

// closeReason is as much of err as fits in a close frame.
func closeReason(err error) string {
	const most = 120
	reason := err.Error()
	if len(reason) > most {
		reason = strings.ToValidUTF8(reason[:most], "")
	}
	return reason
}

// control lets the client's signals and resizes go to p.
func (s *relay) control(p atoll.Process) { s.process.Store(&p) }

// maxOrders is how many signals of a client may wait for their turn.
const maxOrders = 64

// order has a message obeyed, after those before it and by another goroutine:
// whoever reads the connection must not wait for a process. Of resizes that wait
// the last one counts.
func (s *relay) order(m message) error {
	isSignal, isResize := m.Type == msgSignal && m.Signal != nil, m.Type == msgResize && m.Size != nil
	if s.process.Load() == nil || !isSignal && !isResize {
		return violation("a message %q is not possible here", m.Type)
	}
	s.ordersMu.Lock()
	defer s.ordersMu.Unlock()
	last := len(s.orders) - 1
	switch {
	case isResize && last >= 0 && s.orders[last].Type == msgResize:
		s.orders[last] = m
		return nil
	case len(s.orders) == maxOrders:
		return violation("%d signals are waiting already", maxOrders)
	}
	s.orders = append(s.orders, m)
	if !s.busy {
		s.busy = true
		s.obeying.Go(s.obeyAll)
	}
	return nil
}

// obeyAll carries out orders until there are none.
func (s *relay) obeyAll() {
	for {
		s.ordersMu.Lock()
		if len(s.orders) == 0 {
			s.busy = false
			s.ordersMu.Unlock()
			return
		}
		m := s.orders[0]
		s.orders = s.orders[1:]
		s.ordersMu.Unlock()
		s.obey(m)
	}
}

// obey does what a message asks for. One that fails is answered, and the
// relay goes on.
func (s *relay) obey(m message) {
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
		_ = s.send(message{Type: msgRefused, Error: &w}) // a client that has gone needs none
	}
}

// keepAlive pings the other side now and then, until stop is called, and closes
// the connection of one that does not answer.
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

// A running is the client's side of a link.
type running struct {
	*link
	done chan struct{} // closed when last and err are final and all output is delivered
	last message
	err  error

	delivery sync.WaitGroup
	fragile  bool // a writer that fails ends it all
	failMu   sync.Mutex
	failed   error // the first error of a writer
}

// open opens a link, sends the first message and waits for the answer. ctx
// bounds that only.
func (c *Client) open(ctx context.Context, q call, first message, stdin io.Reader, stdout, stderr io.Writer,
	onGap func(s atoll.Stream, from, to int64)) (*running, message, error) {
	if err := c.begin(); err != nil {
		return nil, message{}, atoll.E(q.op, q.id, atoll.ErrUnavailable, err)
	}
	defer c.work.Done()
	ws, err := c.webSocket(ctx, q)
	if err != nil {
		return nil, message{}, err
	}
	r := &running{link: newLink(ws), done: make(chan struct{}), fragile: first.Type == msgAttach}
	ws.SetReadLimit(maxMessage + 1)
	first.Stdout, first.Stderr = stdout != nil, stderr != nil
	first.Joint = stdout != nil && sameWriter(stdout, stderr)
	if stdin != nil {
		r.transmit(chanStdin)
	}
	if stdout != nil {
		r.receive(chanStdout)
	}
	if stderr != nil && !first.Joint {
		r.receive(chanStderr)
	}
	reply, err := r.greet(ctx, q, first)
	if err != nil {
		_ = ws.CloseNow()
		return nil, message{}, c.refusal(ctx, q, err)
	}
	r.carry(c, first.Joint, stdin, stdout, stderr, onGap)
	return r, reply, nil
}

// refusal is why a link was not opened.
func (c *Client) refusal(ctx context.Context, q call, err error) error {
	if _, ok := err.(*atoll.Error); ok {
		return ctxErr(ctx, err)
	}
	if websocket.CloseStatus(err) == websocket.StatusMessageTooBig {
		return atoll.Errorf(q.op, q.id, atoll.ErrInvalid, "the command is larger than the server accepts")
	}
	return c.fault(ctx, q.op, q.id, err)
}

// greet sends the first message and returns the server's, which is an error of
// its own when it says so.
func (r *running) greet(ctx context.Context, q call, first message) (message, error) {
	stop := context.AfterFunc(ctx, func() { _ = r.ws.CloseNow() })
	defer stop()
	if err := r.send(first); err != nil {
		return message{}, err
	}
	reply, err := r.read(false)
	if err == nil && reply.Type == msgError && reply.Error != nil {
		err = reply.Error.err(q.op, q.id)
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	return reply, err
}

// carry begins to move bytes both ways.
func (r *running) carry(c *Client, joint bool, stdin io.Reader, stdout, stderr io.Writer, onGap func(atoll.Stream, int64, int64)) {
	if stdin != nil {
		r.out[chanStdin].open()
		go r.feed(stdin)
	}
	if stdout != nil {
		r.deliver(chanStdout, stdout, onGap)
	}
	if stderr != nil && !joint {
		r.deliver(chanStderr, stderr, onGap)
	}
	c.work.Add(1)
	go func() {
		stop := context.AfterFunc(c.ctx, func() { _ = r.ws.CloseNow() })
		calm := func() {}
		if c.opts.Patience > 0 {
			calm = keepAlive(c.ctx, r.ws, watchEvery, watchTimeout)
		}
		r.readAll(joint)
		calm()
		stop()
		c.work.Done()
		r.delivery.Wait()
		close(r.done)
	}()
}

func (r *running) deliver(ch byte, w io.Writer, onGap func(atoll.Stream, int64, int64)) {
	r.delivery.Go(func() {
		if err := r.in[ch].deliver(w, onGap); err != nil {
			r.writerFailed(err)
		}
	})
}

func (r *running) writerFailed(err error) {
	r.failMu.Lock()
	if r.failed == nil {
		r.failed = err
	}
	r.failMu.Unlock()
	if r.fragile {
		r.leave(err)
	}
}

// leaving is how long a server may take to hear that its client leaves.
const leaving = time.Second

// leave ends the link, and does not wait for that. The server is told, unless why is that
// somebody was lost who may come again.
func (r *running) leave(why error) {
	if isLoss(why) {
		_ = r.ws.CloseNow()
		return
	}
	go func() {
		late := time.AfterFunc(leaving, func() { _ = r.ws.CloseNow() })
		defer late.Stop()
		_ = r.ws.Close(websocket.StatusNormalClosure, "") // which is answered, or late
	}()
}

// writerError is the first error of a writer.
func (r *running) writerError() error {
	r.failMu.Lock()
	defer r.failMu.Unlock()
	return r.failed
}

// readAll reads until the server's last message.
func (r *running) readAll(joint bool) {
	defer r.ws.CloseNow()
	for {
		m, err := r.read(false)
		if err != nil {
			r.err = err
			r.fail(err)
			return
		}
		switch m.Type {
		case msgExit, msgEnd, msgError:
			r.last = m
			r.finish()
			return
		case msgGap:
			r.gap(m, joint)
		}
	}
}

// finish ends the output properly: all of it was received.
func (r *running) finish() {
	for _, f := range r.in {
		if f != nil {
			f.end(io.EOF)
		}
	}
	r.fail(errEnded)
}

func (r *running) gap(m message, joint bool) {
	ch, ok := channelOf(m.Stream)
	if joint {
		ch = chanStdout
	}
	if ok && m.Gap != nil && r.in[ch] != nil {
		r.in[ch].skip(m.Stream, *m.Gap)
	}
}

// feed copies stdin to the process. Nobody waits for it: it may be blocked in
// a caller's Reader.
func (r *running) feed(stdin io.Reader) {
	buf := chunks.Get().(*[deliverSize]byte)
	defer chunks.Put(buf)
	for {
		n, err := stdin.Read(buf[:])
		if n > 0 {
			if _, err := r.out[chanStdin].Write(buf[:n]); err != nil {
				return
			}
		}
		if errors.Is(err, errClosing) {
			return // the rest may come another way
		}
		if err != nil {
			_ = r.send(message{Type: msgClose, Stream: channelNames[chanStdin], Abort: err != io.EOF})
			return
		}
	}
}

// sameWriter compares two writers, of which some types cannot be compared.
func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }()
	return a == b
}
