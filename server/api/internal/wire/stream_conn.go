package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// A StreamConn carries the streams of one process over one WebSocket. Each channel has a window, so
// that a channel without a reader neither fills memory nor blocks the other channels, and the
// goroutine that reads the connection never blocks.
type StreamConn struct {
	WS      *websocket.Conn
	Readers [Channels]*ChannelReader // channels that the other side may send on
	Writers [Channels]*ChannelWriter // channels that the other side wants

	mu  sync.Mutex
	err error
}

// NewStreamConn returns a StreamConn over ws. The caller must close ws.
func NewStreamConn(ws *websocket.Conn) *StreamConn {
	return &StreamConn{WS: ws}
}

// OpenReader lets the other side send on the channel.
func (c *StreamConn) OpenReader(ch byte) *ChannelReader {
	f := &ChannelReader{conn: c, ch: ch}
	f.changed.L = &f.mu
	c.Readers[ch] = f
	return f
}

// OpenWriter returns the writer of the channel. It blocks until OpenWindow.
func (c *StreamConn) OpenWriter(ch byte) *ChannelWriter {
	f := &ChannelWriter{conn: c, ch: ch}
	f.changed.L = &f.mu
	c.mu.Lock() // CloseWriters may run at any time
	defer c.mu.Unlock()
	c.Writers[ch] = f
	return f
}

// CloseWithError ends the connection: all its readers and writers return err. Only the first call
// has an effect.
func (c *StreamConn) CloseWithError(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	c.mu.Unlock()
	c.CloseWriters(err)
	for _, f := range c.Readers {
		if f != nil {
			f.CloseWithError(err)
		}
	}
}

// CloseWriters makes all writers return err.
func (c *StreamConn) CloseWriters(err error) {
	c.mu.Lock()
	out := c.Writers
	c.mu.Unlock()
	for _, f := range out {
		if f != nil {
			f.CloseWithError(err)
		}
	}
}

// CloseError returns the error of CloseWithError, or nil.
func (c *StreamConn) CloseError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// SendMessage sends a text message.
func (c *StreamConn) SendMessage(m Message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.WS.Write(context.Background(), websocket.MessageText, b)
}

// A ProtocolError is a violation of the protocol by the other side. It ends the connection.
type ProtocolError struct{ error }

// Unwrap returns the cause and ErrInvalid.
func (e ProtocolError) Unwrap() []error { return []error{e.error, atoll.ErrInvalid} }

// ProtocolErrorf returns a ProtocolError.
func ProtocolErrorf(format string, args ...any) error {
	return ProtocolError{fmt.Errorf(format, args...)}
}

// framePool has buffers for messages, with one more byte to detect a message that is too long.
var framePool = sync.Pool{New: func() any { return new([MaxMessage + 1]byte) }}

// maxFirstHeader is the most bytes of a first message in a header.
const maxFirstHeader = 8 << 10

// SetFirst adds the first message to the header of a request, unless it is too large for that.
func SetFirst(h http.Header, m Message) {
	if text := ASCIIJSON(m); len(text) <= maxFirstHeader {
		h.Set(FirstHeader, text)
	}
}

// DecodeFirst decodes the first message from the header of a request. If it has none, ok is false.
func (c *StreamConn) DecodeFirst(h http.Header, m *Message) (ok bool, err error) {
	text := h.Get(FirstHeader)
	if text == "" {
		return false, nil
	}
	if err := DecodeStrict([]byte(text), m); err != nil {
		return true, ProtocolErrorf("read the first message: %w", err)
	}
	c.WS.SetReadLimit(MaxMessage + 1)
	return true, nil
}

// ReadFirst reads the first message, of up to max bytes.
func (c *StreamConn) ReadFirst(m *Message, max int64) error {
	c.WS.SetReadLimit(max)
	typ, r, err := c.WS.Reader(context.Background())
	if err != nil {
		return ProtocolErrorf("read the first message: %w", err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return ProtocolErrorf("read the first message: %w", err)
	}
	c.WS.SetReadLimit(MaxMessage + 1)
	if typ != websocket.MessageText {
		return ProtocolErrorf("the first message must be text")
	}
	err = DecodeStrict(b, m)
	if err == io.EOF {
		return ProtocolErrorf("the first message is empty")
	}
	if err != nil {
		return ProtocolErrorf("read the first message: %w", err)
	}
	return nil
}

// ReadMessage handles data and flow control until it receives another message, which it returns.
// strict refuses unknown fields.
func (c *StreamConn) ReadMessage(strict bool) (Message, error) {
	for {
		typ, r, err := c.WS.Reader(context.Background())
		if err != nil {
			return Message{}, err
		}
		m, handled, err := c.handleFrame(typ, r, strict)
		if err != nil || !handled {
			return m, err
		}
	}
}

// handleFrame reads one message. handled reports that the caller need not handle it.
func (c *StreamConn) handleFrame(typ websocket.MessageType, r io.Reader, strict bool) (m Message, handled bool, err error) {
	frame := framePool.Get().(*[MaxMessage + 1]byte)
	defer framePool.Put(frame)
	n, err := io.ReadFull(r, frame[:])
	if err == nil {
		return Message{}, false, ProtocolErrorf("a message is longer than %d bytes", MaxMessage)
	}
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		return Message{}, false, err
	}
	if typ == websocket.MessageBinary {
		return Message{}, true, c.handleData(frame[:n])
	}
	m, err = parseMessage(frame[:n], strict)
	if err != nil {
		return Message{}, false, err
	}
	handled, err = c.handleFlow(m)
	return m, handled, err
}

// handleData passes a binary message to its channel.
func (c *StreamConn) handleData(frame []byte) error {
	if len(frame) == 0 {
		return ProtocolErrorf("a binary message is empty")
	}
	ch := frame[0]
	if ch >= Channels || c.Readers[ch] == nil {
		return ProtocolErrorf("channel %d is not open", ch)
	}
	return c.Readers[ch].appendData(frame[1:])
}

// handleFlow handles the messages "window" and "close". handled reports whether m is one of them.
func (c *StreamConn) handleFlow(m Message) (handled bool, err error) {
	if m.Type != MsgWindow && m.Type != MsgClose {
		return false, nil
	}
	ch, ok := ChannelOf(m.Stream)
	if !ok {
		return true, ProtocolErrorf("unknown stream %q", m.Stream)
	}
	in, out := c.Readers[ch], c.Writers[ch]
	switch {
	case m.Type == MsgWindow && out != nil:
		return true, out.addCredit(m.Bytes)
	case m.Type == MsgClose && out != nil && m.Abort:
		out.CloseWithError(ErrClientLost)
	case m.Type == MsgClose && out != nil:
		out.CloseWithError(io.ErrClosedPipe)
	case m.Type == MsgClose && in != nil && m.Abort:
		in.CloseWithError(io.ErrUnexpectedEOF)
	case m.Type == MsgClose && in != nil:
		in.CloseWithError(io.EOF)
	default:
		return true, ProtocolErrorf("stream %s is not open", m.Stream)
	}
	return true, nil
}

// IsConnLoss reports whether err means that the reader of a stream lost its connection and may
// reconnect.
func IsConnLoss(err error) bool {
	return atoll.KindOf(err) == atoll.ErrUnavailable && !errors.Is(err, context.Canceled)
}

// ErrClientLost is the error of a client that disconnected and may reconnect for the output that did
// not reach it.
var ErrClientLost = atoll.Errorf("", "", atoll.ErrUnavailable, "the client has disconnected")

// ErrEnded closes a stream connection after its last message.
var ErrEnded = errors.New("the process has ended")

// KeepAlive pings the other side at intervals until stop is called. It closes the connection if no
// pong arrives in time.
func KeepAlive(ctx context.Context, ws *websocket.Conn, every, patience time.Duration) (stop func()) {
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
