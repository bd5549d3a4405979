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

// The channels of a link: the first byte of every binary message.
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
	// window is how many bytes of one channel may have been sent and not yet
	// taken by the other side's reader. It is part of the protocol.
	window = 256 << 10
	// maxData is the most that one binary message carries.
	maxData = 64 << 10
	// maxMessage is the longest message, the first one excepted.
	maxMessage = maxData + 1
)

// A message is what a link says in text.
type message struct {
	Type string `json:"type"`

	Command  *atoll.Command `json:"command,omitempty"`   // exec
	Stdin    bool           `json:"stdin,omitempty"`     // exec, attach: the client will send it
	Stdout   bool           `json:"stdout,omitempty"`    // exec, attach: the client wants it
	Stderr   bool           `json:"stderr,omitempty"`    // exec, attach
	Joint    bool           `json:"joint,omitempty"`     // exec, attach: stderr comes on stdout's channel, in order
	From     *offsets       `json:"from,omitempty"`      // attach
	NoFollow bool           `json:"no_follow,omitempty"` // attach
	Name     string         `json:"name,omitempty"`      // attach: the Attachment's

	ID     string       `json:"id,omitempty"`     // started: the process's
	Stream atoll.Stream `json:"stream,omitempty"` // window, close, gap
	Bytes  int64        `json:"bytes,omitempty"`  // window: how many more may be sent
	Abort  bool         `json:"abort,omitempty"`  // close: stdin failed, rather than ended; who reads output was lost, and may come again

	Signal *atoll.Signal `json:"signal,omitempty"` // signal
	Size   *atoll.Size   `json:"size,omitempty"`   // resize
	Gap    *gap          `json:"gap,omitempty"`    // gap
	Exit   *atoll.Exit   `json:"exit,omitempty"`   // exit
	Error  *wireError    `json:"error,omitempty"`  // error, refused
}

// The types of message.
const (
	msgExec   = "exec"   // client, first: start the command
	msgAttach = "attach" // client, first: attach to the process
	msgSignal = "signal" // client
	msgResize = "resize" // client

	msgStarted  = "started"  // server: the command runs
	msgAttached = "attached" // server
	msgGap      = "gap"      // server: bytes of the stream were dropped
	msgExit     = "exit"     // server, last: the process ended, all its output was sent
	msgEnd      = "end"      // server, last: all the output that was asked for was sent
	msgError    = "error"    // server, last: what was asked for failed
	msgRefused  = "refused"  // server: a signal or resize failed

	msgWindow = "window" // both: more of the stream may be sent
	msgClose  = "close"  // both: the stream has ended, or is not wanted any longer
)

// offsets are where an attachment begins to read.
type offsets struct {
	Stdout int64 `json:"stdout,omitempty"`
	Stderr int64 `json:"stderr,omitempty"`
}

// A gap is bytes [from, to) that were dropped.
type gap struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// A link carries the streams of one process over one WebSocket. Each channel
// has a window, so that one that nobody reads neither fills memory nor holds
// up the others, and whoever reads the connection never blocks.
type link struct {
	ws  *websocket.Conn
	in  [channels]*inflow  // what the other side may send
	out [channels]*outflow // what it wants

	mu   sync.Mutex
	err  error
	done chan struct{} // closed by fail
}

func newLink(ws *websocket.Conn) *link { return &link{ws: ws, done: make(chan struct{})} }

// receive makes the channel one that the other side may send on.
func (l *link) receive(ch byte) *inflow {
	f := &inflow{link: l, ch: ch}
	f.more.L = &f.mu
	l.in[ch] = f
	return f
}

// transmit makes the channel one to send on, once it is opened.
func (l *link) transmit(ch byte) *outflow {
	f := &outflow{link: l, ch: ch}
	f.more.L = &f.mu
	l.mu.Lock() // endOutputs may come at any time
	defer l.mu.Unlock()
	l.out[ch] = f
	return f
}

// fail ends the link: everybody who waits for it gets err. The first err
// counts.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	close(l.done)
	l.mu.Unlock()
	l.endOutputs(err)
	for _, f := range l.in {
		if f != nil {
			f.end(err)
		}
	}
}

// endOutputs makes writing to what the other side may read fail with err.
func (l *link) endOutputs(err error) {
	l.mu.Lock()
	out := l.out
	l.mu.Unlock()
	for _, f := range out {
		if f != nil {
			f.end(err)
		}
	}
}

// failure is what fail was told.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return l.ws.Write(context.Background(), websocket.MessageText, b)
}

// A protocolError is a message that makes no sense. It ends the link.
type protocolError struct{ error }

// Unwrap gives it a kind: the other side is to blame.
func (e protocolError) Unwrap() []error { return []error{e.error, atoll.ErrInvalid} }

func violation(format string, args ...any) error {
	return protocolError{fmt.Errorf(format, args...)}
}

// frames are what a message is put together or read in, with one byte more to
// notice that it is too long.
var frames = sync.Pool{New: func() any { return new([maxMessage + 1]byte) }}

// first reads the first message, which may be as long as max.
func (l *link) first(m *message, max int64) error {
	l.ws.SetReadLimit(max)
	typ, r, err := l.ws.Reader(context.Background())
	if err != nil {
		return violation("no first message: %w", err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return violation("the first message: %w", err)
	}
	l.ws.SetReadLimit(maxMessage + 1)
	if typ != websocket.MessageText {
		return violation("the first message must be text")
	}
	err = decodeStrict(b, m)
	if err == io.EOF {
		return violation("the first message is empty")
	}
	if err != nil {
		return violation("the first message: %w", err)
	}
	return nil
}

// read takes one message off the connection: data goes to its channel, what
// concerns a window or the end of a stream is seen to, and any other message
// is returned. strict refuses fields that this version does not know.
func (l *link) read(strict bool) (message, error) {
	for {
		typ, r, err := l.ws.Reader(context.Background())
		if err != nil {
			return message{}, err
		}
		m, own, err := l.take(typ, r, strict)
		if err != nil || !own {
			return m, err
		}
	}
}

// take reads one message. own says that it was seen to.
func (l *link) take(typ websocket.MessageType, r io.Reader, strict bool) (m message, own bool, err error) {
	frame := frames.Get().(*[maxMessage + 1]byte)
	defer frames.Put(frame)
	n, err := io.ReadFull(r, frame[:])
	if err == nil {
		return message{}, false, violation("a message is longer than %d bytes", maxMessage)
	}
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		return message{}, false, err
	}
	if typ == websocket.MessageBinary {
		return message{}, true, l.data(frame[:n])
	}
	m, err = parseMessage(frame[:n], strict)
	if err != nil {
		return message{}, false, err
	}
	own, err = l.flow(m)
	return m, own, err
}

func parseMessage(b []byte, strict bool) (m message, err error) {
	if strict {
		err = decodeStrict(b, &m)
	} else {
		err = json.Unmarshal(b, &m)
	}
	if err == nil && m.Type == "" {
		err = errors.New("it has no type")
	}
	if err != nil {
		return message{}, violation("not a message: %w", err)
	}
	return m, nil
}

// data delivers a binary message.
func (l *link) data(frame []byte) error {
	if len(frame) == 0 {
		return violation("a binary message is empty")
	}
	ch := frame[0]
	if ch >= channels || l.in[ch] == nil {
		return violation("channel %d is not open", ch)
	}
	return l.in[ch].put(frame[1:])
}

// flow sees to messages about the flow of channels.
func (l *link) flow(m message) (own bool, err error) {
	if m.Type != msgWindow && m.Type != msgClose {
		return false, nil
	}
	ch, ok := channelOf(m.Stream)
	if !ok {
		return true, violation("there is no stream %q", m.Stream)
	}
	in, out := l.in[ch], l.out[ch]
	switch {
	case m.Type == msgWindow && out != nil:
		return true, out.grant(m.Bytes)
	case m.Type == msgClose && out != nil && m.Abort:
		out.end(errGone)
	case m.Type == msgClose && out != nil:
		out.end(io.ErrClosedPipe)
	case m.Type == msgClose && in != nil && m.Abort:
		in.end(io.ErrUnexpectedEOF)
	case m.Type == msgClose && in != nil:
		in.end(io.EOF)
	default:
		return true, violation("stream %s is not open", m.Stream)
	}
	return true, nil
}
