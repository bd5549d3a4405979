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
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// The smallest initial size of a terminal, because the layout of a page may be incomplete when it
// connects. A resize may make the terminal smaller.
const (
	minRows = 20
	minCols = 80
)

func terminalRoutes() []Route {
	return []Route{{
		Method: "GET", Path: "/v1/sandboxes/{id}/terminal", Name: "openTerminal", Tag: "processes",
		Summary: "Open a shell on a terminal for a browser, over a WebSocket",
		Doc: "The server sends the output of the terminal as binary messages, unchanged. The client sends the input as binary " +
			"messages or as text messages `input`. The description of the API has the other messages and how a " +
			"browser sends its token.",
		Params: []Param{
			{Name: "rows", Type: "integer", Doc: "height of the terminal, at least 20"},
			{Name: "cols", Type: "integer", Doc: "width of the terminal, at least 80"},
			{Name: "user", Type: "string", Doc: "the user of the shell: a name, UID or UID:GID; default the sandbox's default user"},
			{Name: "root", Type: "boolean", Doc: "the same as user=root"},
			{Name: "keep", Type: "boolean", Doc: "let the process continue if the connection breaks, rather than hang up on it; default true with `process`"},
			{Name: "process", Type: "string", Doc: "attach to this process, which must have a terminal, instead of starting a shell"},
			{Name: "from", Type: "integer", Doc: "with process: the offset of the first byte of its output; 0 means all retained output, -1 output from now on"},
		},
		Status: http.StatusSwitchingProtocols, Stream: jsonOf[terminalMessage](), serve: (*Handler).serveTerminal,
	}}
}

// A terminalMessage is a text message on the WebSocket of a terminal.
type terminalMessage struct {
	Type string `json:"type"` // "resize"

	Data string `json:"data,omitempty"` // input: the typed text
	Rows uint16 `json:"rows,omitempty"` // resize
	Cols uint16 `json:"cols,omitempty"` // resize

	Process string `json:"process,omitempty"` // started, attached: its id
	From    int64  `json:"from,omitempty"`    // attached: the requested offset; gap: offset of the first dropped byte
	To      int64  `json:"to,omitempty"`      // gap: offset of the first byte after the gap

	Code   *int         `json:"code,omitempty"`   // exit: 128 plus the number of the signal that ended the process, if any
	Signal atoll.Signal `json:"signal,omitzero"`  // exit: the signal
	Reason string       `json:"reason,omitempty"` // exit: further explanation, if any

	Kind    atoll.Kind `json:"kind,omitempty"`    // error
	Message string     `json:"message,omitempty"` // error: for people
}

// The types of terminalMessage that message does not have. msgStarted, msgAttached, msgResize,
// msgGap, msgExit and msgError have the same meaning in both.
const (
	msgInput      = "input"       // client
	msgCloseStdin = "close_stdin" // client: no more input
)

const (
	maxTyped    = 1 << 20 // limit of unread input and of a message, in bytes
	outputBlock = 32 << 10
)

// A terminalRequest has the parameters of a terminal.
type terminalRequest struct {
	size    atoll.Size
	user    string
	process string
	from    int64
	keep    bool
}

func parseTerminalRequest(r *http.Request) (w terminalRequest, err error) {
	q := parseQuery(r)
	side := func(name string, least int64) uint16 {
		n := q.getInt(name, 0)
		if n < 0 || n > math.MaxUint16 {
			q.setError(invalidError("parameter %s: must be within 0..%d", name, math.MaxUint16))
		}
		return uint16(max(n, least))
	}
	w.size = atoll.Size{Rows: side("rows", minRows), Cols: side("cols", minCols)}
	w.user, w.process, w.from = q.getString("user"), q.getString("process"), q.getInt("from", 0)
	if q.getBool("root") {
		if w.user != "" && w.user != "root" {
			q.setError(invalidError("parameters user and root: give one of them"))
		}
		w.user = "root"
	}
	w.keep = q.getBool("keep") || w.process != "" && !q.values.Has("keep")
	if w.process == "" && q.values.Has("from") || w.process != "" && w.user != "" {
		q.setError(invalidError("parameters: from requires process, and user and root exclude it"))
	}
	return w, q.err
}

func (h *Handler) serveTerminal(w http.ResponseWriter, r *http.Request) error {
	want, err := parseTerminalRequest(r)
	if err != nil {
		return err
	}
	sb, err := h.findSandbox(r)
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
	t.input.changed.L = &t.input.mu
	t.ctx, t.cancel = context.WithCancel(ctx)
	defer t.work.Wait()
	defer func() { _ = ws.CloseNow() }()
	defer t.cancel()
	defer context.AfterFunc(t.ctx, t.closeOnCancel)()
	defer wire.KeepAlive(t.ctx, ws, pingEvery, pingTimeout)()
	t.work.Go(t.readClient)
	return alreadyAnswered(t.finishTerminal(t.runTerminal(sb, want)))
}

// A terminalConn is the connection of a client to a terminal. Its ctx ends when the client
// disconnects or the handler closes.
type terminalConn struct {
	handler *Handler
	ws      *websocket.Conn
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	lost  atomic.Bool // a read or write has failed, or the server has closed the connection
	wrong atomic.Pointer[error]
	input typedInput
	sizes chan atoll.Size // the latest size that was not applied
}

// runTerminal serves the client until the process ends or the client disconnects.
func (t *terminalConn) runTerminal(sb atoll.Sandbox, want terminalRequest) error {
	p, err := t.openProcess(sb, want)
	if err != nil {
		return err
	}
	defer t.releaseProcess(p, want.keep)
	t.work.Go(func() { t.applySizes(p) })
	err = p.Attach(t.ctx, &atoll.Attachment{
		Stdin: terminal.Input(&t.input), Stdout: screenWriter{t}, StdoutFrom: want.from,
		Gap: func(_ atoll.Stream, from, to int64) {
			_ = t.sendMessage(terminalMessage{Type: wire.MsgGap, From: from, To: to})
		}, // fails if the client has disconnected
	})
	if err != nil {
		return err
	}
	exit, err := p.Wait(t.ctx)
	if err != nil {
		return err
	}
	return t.sendMessage(terminalMessage{Type: wire.MsgExit, Code: &exit.Code, Signal: exit.Signal, Reason: exit.Reason})
}

// openProcess starts the shell, or finds the process, and sends its id to the client.
func (t *terminalConn) openProcess(sb atoll.Sandbox, want terminalRequest) (atoll.Process, error) {
	if want.process != "" {
		p, err := sb.Process(t.ctx, want.process)
		if err == nil {
			err = t.sendMessage(terminalMessage{Type: wire.MsgAttached, Process: p.ID(), From: want.from})
		}
		return p, err
	}
	p, err := sb.Exec(t.ctx, &atoll.Command{TTY: &want.size, User: want.user, OpenStdin: true})
	if err != nil {
		return nil, err
	}
	if err = t.ctx.Err(); err == nil {
		err = t.sendMessage(terminalMessage{Type: wire.MsgStarted, Process: p.ID()})
	}
	if err != nil { // no client will learn the id of the process
		killProcess(t.ctx, p)
		return nil, err
	}
	return p, nil
}

// releaseProcess hangs up on the process if the client has disconnected or may no longer use the
// terminal, unless keep is set or the handler closes.
func (t *terminalConn) releaseProcess(p atoll.Process, keep bool) {
	ended := t.lost.Load() || t.ctx.Err() != nil
	if ended && !keep && t.handler.ctx.Err() == nil {
		terminal.HangUp(t.ctx, p)
	}
}

// readClient reads the client's messages until it disconnects.
func (t *terminalConn) readClient() {
	err := t.readMessages()
	if _, wrong := errors.AsType[wire.ProtocolError](err); wrong {
		t.wrong.Store(&err)
	}
	t.lost.Store(true)
	t.input.endInput(wire.ErrClientLost)
	t.cancel()
}

// readMessages reads messages until one fails.
func (t *terminalConn) readMessages() error {
	for {
		typ, data, err := t.ws.Read(context.Background())
		if err != nil {
			return err
		}
		if typ == websocket.MessageBinary {
			err = t.input.appendInput(data)
		} else {
			err = t.handleText(data)
		}
		if err != nil {
			return err
		}
	}
}

// handleText handles a text message. It does not wait for the process.
func (t *terminalConn) handleText(data []byte) error {
	var m terminalMessage
	if err := wire.DecodeStrict(data, &m); err != nil {
		return wire.ProtocolErrorf("invalid message: %w", err)
	}
	switch {
	case m.Type == msgInput:
		return t.input.appendInput([]byte(m.Data))
	case m.Type == msgCloseStdin:
		t.input.endInput(io.EOF)
		return nil
	case m.Type == wire.MsgResize && m.Rows > 0 && m.Cols > 0:
		select {
		case <-t.sizes: // a new size replaces a pending one
		default:
		}
		t.sizes <- atoll.Size{Rows: m.Rows, Cols: m.Cols}
		return nil
	}
	return wire.ProtocolErrorf("unexpected or incomplete message %q", m.Type)
}

// applySizes resizes the terminal after each change of size. It ignores failures.
func (t *terminalConn) applySizes(p atoll.Process) {
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

// closeOnCancel closes the connection after ctx has ended: at once if the client has disconnected.
// If the handler closes, finishTerminal has closeGrace to send the reason.
func (t *terminalConn) closeOnCancel() {
	if t.lost.Load() && t.wrong.Load() == nil {
		_ = t.ws.CloseNow()
		return
	}
	time.AfterFunc(closeGrace, func() { _ = t.ws.CloseNow() }) // no effect if the terminal has ended
}

// finishTerminal sends err, if any, as the last message and closes the connection.
func (t *terminalConn) finishTerminal(err error) error {
	code := websocket.StatusNormalClosure
	switch wrong := t.wrong.Load(); {
	case wrong != nil:
		err, code = *wrong, websocket.StatusPolicyViolation
	case t.lost.Load():
		return wire.ErrClientLost
	case err != nil && errors.Is(endReason(t.ctx), errKeyEnded):
		err, code = errKeyEnded, websocket.StatusPolicyViolation
	case t.handler.ctx.Err() != nil && err != nil:
		err, code = wire.ErrClosing, websocket.StatusGoingAway
	}
	if err != nil {
		_ = t.sendMessage(terminalMessage{Type: wire.MsgError, Kind: atoll.KindOf(err), Message: err.Error()}) // fails if the client has disconnected
	}
	t.lost.Store(true) // ignores what the client sends from now on
	_ = t.ws.Close(code, "")
	return err
}

// sendMessage sends a text message.
func (t *terminalConn) sendMessage(m terminalMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return t.writeMessage(websocket.MessageText, b)
}

// writeMessage sends a message. A failure means that the client has disconnected, which readClient may
// find out only later.
func (t *terminalConn) writeMessage(typ websocket.MessageType, b []byte) error {
	err := t.ws.Write(context.Background(), typ, b)
	if err != nil {
		t.lost.Store(true)
	}
	return err
}

// A screenWriter sends output to the client. It blocks while the client does not read.
type screenWriter struct{ t *terminalConn }

func (s screenWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		block := p[:min(len(p), outputBlock)]
		if err = s.t.writeMessage(websocket.MessageBinary, block); err == nil {
			n, p = n+len(block), p[len(block):]
		}
	}
	return n, err
}

// A typedInput buffers input that the process has not read.
type typedInput struct {
	mu      sync.Mutex
	changed sync.Cond
	buf     []byte
	err     error // why no more input will come
}

// appendInput appends p to the buffer.
func (t *typedInput) appendInput(p []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return wire.ProtocolErrorf("input after %s", msgCloseStdin)
	}
	if len(t.buf)+len(p) > maxTyped {
		return wire.ProtocolErrorf("more than %d bytes of unread input", maxTyped)
	}
	t.buf = append(t.buf, p...)
	t.changed.Signal()
	return nil
}

// endInput ends the input. If err is io.EOF the process can still read the buffer.
func (t *typedInput) endInput(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil || t.err == io.EOF {
		t.err = err
	}
	if err != io.EOF {
		t.buf = nil
	}
	t.changed.Broadcast()
}

// Read implements io.Reader.
func (t *typedInput) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.buf) == 0 && t.err == nil {
		t.changed.Wait()
	}
	if len(t.buf) == 0 {
		return 0, t.err
	}
	n := copy(p, t.buf)
	t.buf = t.buf[n:]
	return n, nil
}
