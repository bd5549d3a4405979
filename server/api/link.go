package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// The channels of a stream connection: the first byte of each binary message.
const (
	chanStdin byte = iota
	chanStdout
	chanStderr
	channels
)

var channelNames = [channels]atoll.Stream{"stdin", atoll.Stdout, atoll.Stderr}

func channelOf(s atoll.Stream) (byte, bool) {
	for ch, name := range channelNames {
		if name == s {
			return byte(ch), true
		}
	}
	return 0, false
}

const (
	// window is the largest number of bytes that may be sent on one channel before the receiver
	// has consumed them. It is part of the protocol.
	window = 256 << 10
	// maxData is the largest payload of a binary message.
	maxData = 64 << 10
	// maxMessage is the size of the largest message except for the first.
	maxMessage = maxData + 1
)

// A message is a text message of a stream connection.
type message struct {
	Type string `json:"type"`

	Command  *atoll.Command `json:"command,omitempty"`   // exec
	Stdin    bool           `json:"stdin,omitempty"`     // exec, attach: the client will send stdin
	Stdout   bool           `json:"stdout,omitempty"`    // exec, attach: the client wants stdout
	Stderr   bool           `json:"stderr,omitempty"`    // exec, attach: the client wants stderr
	Joint    bool           `json:"joint,omitempty"`     // exec, attach: send stderr on the channel of stdout, in order
	From     *offsets       `json:"from,omitempty"`      // attach: where to begin
	NoFollow bool           `json:"no_follow,omitempty"` // attach: end at the current end of the output
	Name     string         `json:"name,omitempty"`      // attach: the name of the attachment

	ID     string       `json:"id,omitempty"`     // started, attached: the id of the process
	Stream atoll.Stream `json:"stream,omitempty"` // window, close, gap
	Bytes  int64        `json:"bytes,omitempty"`  // window: how many more bytes may be sent
	Abort  bool         `json:"abort,omitempty"`  // close: of stdin, that it failed; of output, that the reader lost its connection and may reconnect

	Signal *atoll.Signal `json:"signal,omitempty"` // signal
	Size   *atoll.Size   `json:"size,omitempty"`   // resize
	Gap    *gap          `json:"gap,omitempty"`    // gap
	Exit   *atoll.Exit   `json:"exit,omitempty"`   // exit
	Error  *wireError    `json:"error,omitempty"`  // error, refused
}

// The types of message, with the side that sends them.
const (
	msgExec   = "exec"   // client, first: start the command
	msgAttach = "attach" // client, first: attach to the process
	msgSignal = "signal" // client
	msgResize = "resize" // client

	msgStarted  = "started"  // server: the command runs
	msgAttached = "attached" // server
	msgGap      = "gap"      // server: bytes of the stream were dropped
	msgExit     = "exit"     // server, last: the process ended, all its output was sent
	msgEnd      = "end"      // server, last: all the requested output was sent
	msgError    = "error"    // server, last: the request failed
	msgRefused  = "refused"  // server: a signal or resize failed

	msgWindow = "window" // both: more of the stream may be sent
	msgClose  = "close"  // both: the sender ended the stream, or the receiver wants no more of it
)

// offsets are the positions at which an attachment begins to read.
type offsets struct {
	Stdout int64 `json:"stdout,omitempty"`
	Stderr int64 `json:"stderr,omitempty"`
}

// A gap is a range of dropped bytes, [From, To).
type gap struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// A streamConn carries the streams of one process over one WebSocket. Each channel has a window, so
// that a channel without a reader neither fills memory nor blocks the other channels, and the
// goroutine that reads the connection never blocks.
type streamConn struct {
	WS      *websocket.Conn
	Readers [channels]*channelReader // channels that the other side may send on
	Writers [channels]*channelWriter // channels that the other side wants

	mu   sync.Mutex
	err  error
}

func newStreamConn(ws *websocket.Conn) *streamConn {
	return &streamConn{WS: ws}
}

// OpenReader lets the other side send on the channel.
func (l *streamConn) OpenReader(ch byte) *channelReader {
	f := &channelReader{link: l, ch: ch}
	f.changed.L = &f.mu
	l.Readers[ch] = f
	return f
}

// OpenWriter returns the writer of the channel. It blocks until openWindow.
func (l *streamConn) OpenWriter(ch byte) *channelWriter {
	f := &channelWriter{link: l, ch: ch}
	f.changed.L = &f.mu
	l.mu.Lock() // closeWriters may run at any time
	defer l.mu.Unlock()
	l.Writers[ch] = f
	return f
}

// CloseWithError ends the connection: all its readers and writers return err. Only the first call
// has an effect.
func (l *streamConn) CloseWithError(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	l.mu.Unlock()
	l.CloseWriters(err)
	for _, f := range l.Readers {
		if f != nil {
			f.CloseWithError(err)
		}
	}
}

// CloseWriters makes all writers return err.
func (l *streamConn) CloseWriters(err error) {
	l.mu.Lock()
	out := l.Writers
	l.mu.Unlock()
	for _, f := range out {
		if f != nil {
			f.CloseWithError(err)
		}
	}
}

// CloseError returns the error of closeWithError, or nil.
func (l *streamConn) CloseError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// SendMessage sends a text message.
func (l *streamConn) SendMessage(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return l.WS.Write(context.Background(), websocket.MessageText, b)
}

// A protocolError is a violation of the protocol by the other side. It ends the connection.
type protocolError struct{ error }

// Unwrap returns the cause and ErrInvalid.
func (e protocolError) Unwrap() []error { return []error{e.error, atoll.ErrInvalid} }

func protocolErrorf(format string, args ...any) error {
	return protocolError{fmt.Errorf(format, args...)}
}

// framePool has buffers for messages, with one more byte to detect a message that is too long.
var framePool = sync.Pool{New: func() any { return new([maxMessage + 1]byte) }}

// ReadFirst reads the first message, of up to max bytes.
func (l *streamConn) ReadFirst(m *message, max int64) error {
	l.WS.SetReadLimit(max)
	typ, r, err := l.WS.Reader(context.Background())
	if err != nil {
		return protocolErrorf("read the first message: %w", err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return protocolErrorf("read the first message: %w", err)
	}
	l.WS.SetReadLimit(maxMessage + 1)
	if typ != websocket.MessageText {
		return protocolErrorf("the first message must be text")
	}
	err = decodeStrict(b, m)
	if err == io.EOF {
		return protocolErrorf("the first message is empty")
	}
	if err != nil {
		return protocolErrorf("read the first message: %w", err)
	}
	return nil
}

// ReadMessage handles data and flow control until it receives another message, which it returns.
// strict refuses unknown fields.
func (l *streamConn) ReadMessage(strict bool) (message, error) {
	for {
		typ, r, err := l.WS.Reader(context.Background())
		if err != nil {
			return message{}, err
		}
		m, handled, err := l.handleFrame(typ, r, strict)
		if err != nil || !handled {
			return m, err
		}
	}
}

// handleFrame reads one message. handled reports that the caller need not handle it.
func (l *streamConn) handleFrame(typ websocket.MessageType, r io.Reader, strict bool) (m message, handled bool, err error) {
	frame := framePool.Get().(*[maxMessage + 1]byte)
	defer framePool.Put(frame)
	n, err := io.ReadFull(r, frame[:])
	if err == nil {
		return message{}, false, protocolErrorf("a message is longer than %d bytes", maxMessage)
	}
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		return message{}, false, err
	}
	if typ == websocket.MessageBinary {
		return message{}, true, l.handleData(frame[:n])
	}
	m, err = parseMessage(frame[:n], strict)
	if err != nil {
		return message{}, false, err
	}
	handled, err = l.handleFlow(m)
	return m, handled, err
}

func parseMessage(b []byte, strict bool) (m message, err error) {
	if strict {
		err = decodeStrict(b, &m)
	} else {
		err = json.Unmarshal(b, &m)
	}
	if err == nil && m.Type == "" {
		err = errors.New("missing type")
	}
	if err != nil {
		return message{}, protocolErrorf("invalid message: %w", err)
	}
	return m, nil
}

// handleData passes a binary message to its channel.
func (l *streamConn) handleData(frame []byte) error {
	if len(frame) == 0 {
		return protocolErrorf("a binary message is empty")
	}
	ch := frame[0]
	if ch >= channels || l.Readers[ch] == nil {
		return protocolErrorf("channel %d is not open", ch)
	}
	return l.Readers[ch].appendData(frame[1:])
}

// handleFlow handles the messages "window" and "close". handled reports whether m is one of them.
func (l *streamConn) handleFlow(m message) (handled bool, err error) {
	if m.Type != msgWindow && m.Type != msgClose {
		return false, nil
	}
	ch, ok := channelOf(m.Stream)
	if !ok {
		return true, protocolErrorf("unknown stream %q", m.Stream)
	}
	in, out := l.Readers[ch], l.Writers[ch]
	switch {
	case m.Type == msgWindow && out != nil:
		return true, out.addCredit(m.Bytes)
	case m.Type == msgClose && out != nil && m.Abort:
		out.CloseWithError(errClientLost)
	case m.Type == msgClose && out != nil:
		out.CloseWithError(io.ErrClosedPipe)
	case m.Type == msgClose && in != nil && m.Abort:
		in.CloseWithError(io.ErrUnexpectedEOF)
	case m.Type == msgClose && in != nil:
		in.CloseWithError(io.EOF)
	default:
		return true, protocolErrorf("stream %s is not open", m.Stream)
	}
	return true, nil
}
