package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/terminal"
)

// The size of a terminal whose client does not say, or says less: a page that is
// still being laid out has none worth mentioning. A resize may make it smaller.
const (
	minRows = 20
	minCols = 80
)

func terminalRoutes() []Route {
	return []Route{{
		Method: "GET", Path: "/v1/sandboxes/{id}/terminal", Name: "terminal", Tag: "processes",
		Summary: "A shell on a terminal, for a browser, over a WebSocket",
		Doc: "What the terminal shows comes as binary messages, the bytes as they are; what is typed goes as binary " +
			"messages or as text messages `input`. See the description of the API for the other messages, and for how a " +
			"browser sends its token.",
		Params: []Param{
			{Name: "rows", Type: "integer", Doc: "of the terminal, 20 at least"},
			{Name: "cols", Type: "integer", Doc: "of the terminal, 80 at least"},
			{Name: "user", Type: "string", Doc: "who runs the shell: a name, UID or UID:GID; the sandbox's default user unless given"},
			{Name: "root", Type: "boolean", Doc: "the same as user=root"},
			{Name: "keep", Type: "boolean", Doc: "let the process live on when the connection is lost, rather than to hang up on it; unless given, so it is with `process`"},
			{Name: "process", Type: "string", Doc: "attach to this process, which must have a terminal, instead of starting a shell"},
			{Name: "from", Type: "integer", Doc: "with process: the offset of the first byte of its output; 0 is all that is kept, -1 what comes from now on"},
		},
		Status: http.StatusSwitchingProtocols, Stream: jsonOf[terminalMessage](), serve: (*Handler).serveTerminal,
	}}
}

// A terminalMessage is what client and server say in text about a terminal.
type terminalMessage struct {
	Type string `json:"type"`

	Data string `json:"data,omitempty"` // input: what is typed
	Rows uint16 `json:"rows,omitempty"` // resize
	Cols uint16 `json:"cols,omitempty"` // resize

	Process string `json:"process,omitempty"` // started, attached: its id
	From    int64  `json:"from,omitempty"`    // attached: the offset that was asked for; gap: of the first byte that is gone
	To      int64  `json:"to,omitempty"`      // gap: of the first byte that follows

	Code   *int         `json:"code,omitempty"`   // exit: 128 and the signal's number when one has ended it
	Signal atoll.Signal `json:"signal,omitzero"`  // exit: which one
	Reason string       `json:"reason,omitempty"` // exit: when there is more to say

	Kind    atoll.Kind `json:"kind,omitempty"`    // error
	Message string     `json:"message,omitempty"` // error: in words
}

// The types of terminalMessage; msgStarted, msgAttached, msgResize, msgGap,
// msgExit and msgError are as on a link.
const (
	msgInput      = "input"       // client
	msgCloseStdin = "close_stdin" // client: nothing more will be typed
)

const (
	maxTyped    = 1 << 20 // bytes that the program has not read, and of a message
	outputBlock = 32 << 10
)

// A wantedTerminal is what a client asks for.
type wantedTerminal struct {
	size    atoll.Size
	user    string
	process string
	from    int64
	keep    bool
}

func parseTerminal(r *http.Request) (w wantedTerminal, err error) {
	q := queryOf(r)
	side := func(name string, least int64) uint16 {
		n := q.int(name, 0)
		if n < 0 || n > math.MaxUint16 {
			q.fail(invalid("parameter %s: must be within 0..%d", name, math.MaxUint16))
		}
		return uint16(max(n, least))
	}
	w.size = atoll.Size{Rows: side("rows", minRows), Cols: side("cols", minCols)}
	w.user, w.process, w.from = q.str("user"), q.str("process"), q.int("from", 0)
	if q.bool("root") {
		if w.user != "" && w.user != "root" {
			q.fail(invalid("parameters user and root: give one of them"))
		}
		w.user = "root"
	}
	w.keep = q.bool("keep") || w.process != "" && !q.values.Has("keep")
	if w.process == "" && q.values.Has("from") || w.process != "" && w.user != "" {
		q.fail(invalid("parameters: from goes with process, and user and root without"))
	}
	return w, q.err
}

func (h *Handler) serveTerminal(w http.ResponseWriter, r *http.Request) error {
	want, err := parseTerminal(r)
	if err != nil {
		return err
	}
	sb, err := h.sandbox(r)
	if err != nil {
		return err
	}
	ctx, ws, done, err := h.webSocket(w, r)
	if err != nil {
		return err
	}
	defer done()
	ws.SetReadLimit(maxTyped)
	t := &terminalConn{handler: h, ws: ws, sizes: make(chan atoll.Size, 1)}
	t.typed.more.L = &t.typed.mu
	t.ctx, t.cancel = context.WithCancel(ctx)
	defer t.work.Wait()
	defer func() { _ = ws.CloseNow() }()
	defer t.cancel()
	defer context.AfterFunc(t.ctx, t.part)()
	defer keepAlive(t.ctx, ws, pingEvery, pingTimeout)()
	t.work.Go(t.listen)
	return answered(t.finish(t.run(sb, want)))
}

// A terminalConn is a client at a terminal. Its ctx ends when the client has gone
// or the handler closes.
type terminalConn struct {
	handler *Handler
	ws      *websocket.Conn
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	lost  atomic.Bool // the client has gone, or was told to
	wrong atomic.Pointer[error]
	typed typed
	sizes chan atoll.Size // the latest one that the terminal has not been told
}

// run serves the client until the process has ended, or the client is gone.
func (t *terminalConn) run(sb atoll.Sandbox, want wantedTerminal) error {
	p, err := t.open(sb, want)
	if err != nil {
		return err
	}
	defer t.leave(p, want.keep)
	t.work.Go(func() { t.obey(p) })
	err = p.Attach(t.ctx, &atoll.Attachment{
		Stdin: terminal.Input(&t.typed), Stdout: screen{t}, StdoutFrom: want.from,
		Gap: func(_ atoll.Stream, from, to int64) { _ = t.send(terminalMessage{Type: msgGap, From: from, To: to}) }, // as below
	})
	if err != nil {
		return err
	}
	exit, err := p.Wait(t.ctx)
	if err != nil {
		return err
	}
	return t.send(terminalMessage{Type: msgExit, Code: &exit.Code, Signal: exit.Signal, Reason: exit.Reason})
}

// open starts the shell, or finds the process, and tells the client.
func (t *terminalConn) open(sb atoll.Sandbox, want wantedTerminal) (atoll.Process, error) {
	if want.process != "" {
		p, err := sb.Process(t.ctx, want.process)
		if err == nil {
			err = t.send(terminalMessage{Type: msgAttached, Process: p.ID(), From: want.from})
		}
		return p, err
	}
	p, err := sb.Exec(t.ctx, &atoll.Command{TTY: &want.size, User: want.user, OpenStdin: true})
	if err != nil {
		return nil, err
	}
	if err = t.ctx.Err(); err == nil {
		err = t.send(terminalMessage{Type: msgStarted, Process: p.ID()})
	}
	if err != nil { // nobody will ever know that it was started
		kill(t.ctx, p)
		return nil, err
	}
	return p, nil
}

// leave hangs up on the process of a client that has gone, unless it shall be
// kept; when the handler closes it lives on, as with every stream.
func (t *terminalConn) leave(p atoll.Process, keep bool) {
	if t.lost.Load() && !keep && t.handler.ctx.Err() == nil {
		terminal.HangUp(t.ctx, p)
	}
}

// listen reads what the client sends, until it has gone.
func (t *terminalConn) listen() {
	err := t.read()
	if _, wrong := errors.AsType[protocolError](err); wrong {
		t.wrong.Store(&err)
	}
	t.lost.Store(true)
	t.typed.end(errGone)
	t.cancel()
}

func (t *terminalConn) read() error {
	for {
		typ, data, err := t.ws.Read(context.Background())
		if err != nil {
			return err
		}
		if typ == websocket.MessageBinary {
			err = t.typed.put(data)
		} else {
			err = t.take(data)
		}
		if err != nil {
			return err
		}
	}
}

// take does what a text message says. It does not wait for the process.
func (t *terminalConn) take(data []byte) error {
	var m terminalMessage
	if err := decodeStrict(data, &m); err != nil {
		return violation("not a message: %w", err)
	}
	switch {
	case m.Type == msgInput:
		return t.typed.put([]byte(m.Data))
	case m.Type == msgCloseStdin:
		t.typed.end(io.EOF)
		return nil
	case m.Type == msgResize && m.Rows > 0 && m.Cols > 0:
		select {
		case <-t.sizes: // of those that wait the last one counts
		default:
		}
		t.sizes <- atoll.Size{Rows: m.Rows, Cols: m.Cols}
		return nil
	}
	return violation("a message %q is not possible here, or not so", m.Type)
}

// obey tells the terminal its size whenever that changes. One that cannot be told
// goes on as it was.
func (t *terminalConn) obey(p atoll.Process) {
	for {
		select {
		case <-t.ctx.Done():
			return
		case size := <-t.sizes:
			ctx, cancel := context.WithTimeout(t.ctx, controlTimeout)
			_ = atoll.Resize(ctx, p, size)
			cancel()
		}
	}
}

// part ends the connection when ctx has ended: at once where the client has gone;
// else finish tells it why, which may take it closeGrace to read.
func (t *terminalConn) part() {
	if t.lost.Load() && t.wrong.Load() == nil {
		_ = t.ws.CloseNow()
		return
	}
	time.AfterFunc(closeGrace, func() { _ = t.ws.CloseNow() }) // nothing, where it has ended
}

// finish tells the client how it went, and closes the connection.
func (t *terminalConn) finish(err error) error {
	code := websocket.StatusNormalClosure
	switch wrong := t.wrong.Load(); {
	case wrong != nil:
		err, code = *wrong, websocket.StatusPolicyViolation
	case t.lost.Load():
		return errGone
	case t.handler.ctx.Err() != nil && err != nil:
		err, code = errClosing, websocket.StatusGoingAway
	}
	if err != nil {
		_ = t.send(terminalMessage{Type: msgError, Kind: atoll.KindOf(err), Message: err.Error()}) // a client that has gone needs none
	}
	t.lost.Store(true) // what it may still send concerns nobody
	_ = t.ws.Close(code, "")
	return err
}

func (t *terminalConn) send(m terminalMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return t.ws.Write(context.Background(), websocket.MessageText, b)
}

// A screen shows the client what the process prints. A client that does not read
// holds the process back.
type screen struct{ t *terminalConn }

func (s screen) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		block := p[:min(len(p), outputBlock)]
		if err = s.t.ws.Write(context.Background(), websocket.MessageBinary, block); err == nil {
			n, p = n+len(block), p[len(block):]
		}
	}
	return n, err
}

// typed is what the client has typed and the process not yet read.
type typed struct {
	mu   sync.Mutex
	more sync.Cond
	buf  []byte
	err  error // why no more will come
}

// put appends what was typed.
func (t *typed) put(p []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return violation("something was typed after %s", msgCloseStdin)
	}
	if len(t.buf)+len(p) > maxTyped {
		return violation("more than %d bytes were typed that the program has not read", maxTyped)
	}
	t.buf = append(t.buf, p...)
	t.more.Signal()
	return nil
}

// end says that no more will come. What was typed can still be read when that is
// io.EOF.
func (t *typed) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil || t.err == io.EOF {
		t.err = err
	}
	if err != io.EOF {
		t.buf = nil
	}
	t.more.Broadcast()
}

// Read implements io.Reader.
func (t *typed) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.buf) == 0 && t.err == nil {
		t.more.Wait()
	}
	if len(t.buf) == 0 {
		return 0, t.err
	}
	n := copy(p, t.buf)
	t.buf = t.buf[n:]
	return n, nil
}
