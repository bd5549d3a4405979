package wire

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// A ChannelWriter sends data on one channel. It blocks when it has used up the window of the other
// side.
type ChannelWriter struct {
	conn *StreamConn
	ch   byte

	mu      sync.Mutex
	changed sync.Cond // credit or err has changed
	opened  bool
	credit  int64
	err     error
}

// OpenWindow grants the first window.
func (f *ChannelWriter) OpenWindow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened, f.credit = true, Window
	f.changed.Broadcast()
}

// addCredit allows n more bytes.
func (f *ChannelWriter) addCredit(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.opened || n <= 0 || n > Window-f.credit {
		return ProtocolErrorf("stream %s: invalid window of %d more bytes", ChannelNames[f.ch], n)
	}
	f.credit += n
	f.changed.Broadcast()
	return nil
}

// CloseWithError makes Write return err. Only the first call has an effect.
func (f *ChannelWriter) CloseWithError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.changed.Broadcast()
}

// takeCredit blocks until there is credit, and uses up to most bytes of it.
func (f *ChannelWriter) takeCredit(most int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.credit == 0 && f.err == nil {
		f.changed.Wait()
	}
	if f.err != nil {
		return 0, f.err
	}
	n := min(int64(most), f.credit, MaxData)
	f.credit -= n
	return int(n), nil
}

// Write implements io.Writer. It blocks while the other side does not read.
func (f *ChannelWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		m, err := f.takeCredit(len(p))
		if err != nil {
			return n, err
		}
		if err := f.writeFrame(p[:m]); err != nil {
			return n, atoll.E("", "", atoll.ErrUnavailable, err) // the connection broke
		}
		n += m
		p = p[m:]
	}
	return n, nil
}

// writeFrame sends one binary message.
func (f *ChannelWriter) writeFrame(p []byte) error {
	frame := framePool.Get().(*[MaxMessage + 1]byte)
	defer framePool.Put(frame)
	frame[0] = f.ch
	n := copy(frame[1:], p)
	return f.conn.WS.Write(context.Background(), websocket.MessageBinary, frame[:1+n])
}

// A ChannelReader buffers the data received on one channel.
type ChannelReader struct {
	conn *StreamConn
	ch   byte

	mu        sync.Mutex
	changed   sync.Cond // buf, gaps or err has changed
	buf       bytes.Buffer
	consumed  int64 // bytes read so far
	unacked   int64 // bytes read and not yet returned to the sender's window
	gaps      []gapMark
	discarded bool  // discardRest was called
	err       error // why no more data will come; io.EOF at the end of the stream
}

// A gapMark is a gap before the byte at offset.
type gapMark struct {
	offset int64
	stream atoll.Stream
	gap    Gap
}

// appendData buffers p. It returns a ProtocolError if the sender exceeded its window.
func (f *ChannelReader) appendData(p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int64(f.buf.Len())+f.unacked+int64(len(p)) > Window {
		return ProtocolErrorf("stream %s: the data exceeds the window", ChannelNames[f.ch])
	}
	if f.err != nil {
		return ProtocolErrorf("stream %s: data after its end", ChannelNames[f.ch])
	}
	if !f.discarded {
		f.buf.Write(p)
		f.changed.Signal()
	}
	return nil
}

// AddGap records that bytes are missing after the data received so far.
func (f *ChannelReader) AddGap(stream atoll.Stream, g Gap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gaps = append(f.gaps, gapMark{f.consumed + int64(f.buf.Len()), stream, g})
	f.changed.Signal()
}

// CloseWithError ends the channel; reads return err after the buffered data. Only the first call
// has an effect.
func (f *ChannelReader) CloseWithError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.changed.Broadcast()
}

// readNext blocks until there is something to read. It returns a gap, or bytes up to the next gap,
// or the error of the channel.
func (f *ChannelReader) readNext(p []byte) (n int, m *gapMark, err error) {
	f.mu.Lock()
	for f.buf.Len() == 0 && len(f.gaps) == 0 && f.err == nil {
		f.changed.Wait()
	}
	if len(f.gaps) > 0 {
		if first := f.gaps[0]; first.offset == f.consumed {
			f.gaps = f.gaps[1:]
			f.mu.Unlock()
			return 0, &first, nil
		}
		p = p[:min(int64(len(p)), f.gaps[0].offset-f.consumed)]
	}
	if f.buf.Len() == 0 {
		defer f.mu.Unlock()
		return 0, nil, f.err
	}
	n, _ = f.buf.Read(p)
	f.consumed += int64(n)
	f.unacked += int64(n)
	give := int64(0)
	if f.unacked >= Window/2 && f.err == nil {
		give, f.unacked = f.unacked, 0
	}
	f.mu.Unlock()
	if give > 0 {
		_ = f.conn.SendMessage(Message{Type: MsgWindow, Stream: ChannelNames[f.ch], Bytes: give}) // ReadMessage reports a broken connection
	}
	return n, nil, nil
}

// Read implements io.Reader for a channel without gaps.
func (f *ChannelReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, _, err := f.readNext(p)
	return n, err
}

// discardRest discards all further data and tells the sender to stop. connLost tells it that the
// reader may reconnect.
func (f *ChannelReader) discardRest(connLost bool) {
	f.mu.Lock()
	f.discarded = true
	f.buf.Reset()
	over := f.err != nil
	f.mu.Unlock()
	if !over {
		_ = f.conn.SendMessage(Message{Type: MsgClose, Stream: ChannelNames[f.ch], Abort: connLost}) // as above
	}
}

// ChunkSize is the size of the buffers in ChunkPool.
const ChunkSize = 32 << 10

// ChunkPool has buffers for copying streams, of type *[ChunkSize]byte.
var ChunkPool = sync.Pool{New: func() any { return new([ChunkSize]byte) }}

// DeliverTo writes the received data to w until the channel ends. It returns the first error of w,
// or nil. onGap may be nil.
func (f *ChannelReader) DeliverTo(w io.Writer, onGap func(s atoll.Stream, from, to int64)) error {
	buf := ChunkPool.Get().(*[ChunkSize]byte)
	defer ChunkPool.Put(buf)
	for {
		n, m, err := f.readNext(buf[:])
		if err != nil {
			return nil
		}
		if m != nil {
			if onGap != nil {
				onGap(m.stream, m.gap.From, m.gap.To)
			}
			continue
		}
		wrote, err := w.Write(buf[:n])
		if err == nil && wrote < n {
			err = io.ErrShortWrite
		}
		if err != nil {
			f.discardRest(IsConnLoss(err))
			return err
		}
	}
}
