package api

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// A channelWriter sends data on one channel. It blocks when it has used up the window of the other
// side.
type channelWriter struct {
	link *streamConn
	ch   byte

	mu      sync.Mutex
	changed sync.Cond // credit or err has changed
	opened  bool
	credit  int64
	err     error
}

// OpenWindow grants the first window.
func (f *channelWriter) OpenWindow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened, f.credit = true, window
	f.changed.Broadcast()
}

// addCredit allows n more bytes.
func (f *channelWriter) addCredit(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.opened || n <= 0 || n > window-f.credit {
		return protocolErrorf("stream %s: invalid window of %d more bytes", channelNames[f.ch], n)
	}
	f.credit += n
	f.changed.Broadcast()
	return nil
}

// CloseWithError makes Write return err. Only the first call has an effect.
func (f *channelWriter) CloseWithError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.changed.Broadcast()
}

// takeCredit blocks until there is credit, and uses up to most bytes of it.
func (f *channelWriter) takeCredit(most int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.credit == 0 && f.err == nil {
		f.changed.Wait()
	}
	if f.err != nil {
		return 0, f.err
	}
	n := min(int64(most), f.credit, maxData)
	f.credit -= n
	return int(n), nil
}

// Write implements io.Writer. It blocks while the other side does not read.
func (f *channelWriter) Write(p []byte) (n int, err error) {
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
func (f *channelWriter) writeFrame(p []byte) error {
	frame := framePool.Get().(*[maxMessage + 1]byte)
	defer framePool.Put(frame)
	frame[0] = f.ch
	n := copy(frame[1:], p)
	return f.link.WS.Write(context.Background(), websocket.MessageBinary, frame[:1+n])
}

// A channelReader buffers the data received on one channel.
type channelReader struct {
	link *streamConn
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
	gap    gap
}

// appendData buffers p. It returns a protocolError if the sender exceeded its window.
func (f *channelReader) appendData(p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int64(f.buf.Len())+f.unacked+int64(len(p)) > window {
		return protocolErrorf("stream %s: the data exceeds the window", channelNames[f.ch])
	}
	if f.err != nil {
		return protocolErrorf("stream %s: data after its end", channelNames[f.ch])
	}
	if !f.discarded {
		f.buf.Write(p)
		f.changed.Signal()
	}
	return nil
}

// AddGap records that bytes are missing after the data received so far.
func (f *channelReader) AddGap(stream atoll.Stream, g gap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gaps = append(f.gaps, gapMark{f.consumed + int64(f.buf.Len()), stream, g})
	f.changed.Signal()
}

// CloseWithError ends the channel; reads return err after the buffered data. Only the first call
// has an effect.
func (f *channelReader) CloseWithError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.changed.Broadcast()
}

// readNext blocks until there is something to read. It returns a gap, or bytes up to the next gap,
// or the error of the channel.
func (f *channelReader) readNext(p []byte) (n int, m *gapMark, err error) {
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
	if f.unacked >= window/2 && f.err == nil {
		give, f.unacked = f.unacked, 0
	}
	f.mu.Unlock()
	if give > 0 {
		_ = f.link.SendMessage(message{Type: msgWindow, Stream: channelNames[f.ch], Bytes: give}) // readMessage reports a broken connection
	}
	return n, nil, nil
}

// Read implements io.Reader for a channel without gaps.
func (f *channelReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, _, err := f.readNext(p)
	return n, err
}

// discardRest discards all further data and tells the sender to stop. connLost tells it that the
// reader may reconnect.
func (f *channelReader) discardRest(connLost bool) {
	f.mu.Lock()
	f.discarded = true
	f.buf.Reset()
	over := f.err != nil
	f.mu.Unlock()
	if !over {
		_ = f.link.SendMessage(message{Type: msgClose, Stream: channelNames[f.ch], Abort: connLost}) // as above
	}
}

const chunkSize = 32 << 10

var chunkPool = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// DeliverTo writes the received data to w until the channel ends. It returns the first error of w,
// or nil. onGap may be nil.
func (f *channelReader) DeliverTo(w io.Writer, onGap func(s atoll.Stream, from, to int64)) error {
	buf := chunkPool.Get().(*[chunkSize]byte)
	defer chunkPool.Put(buf)
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
			f.discardRest(isConnLoss(err))
			return err
		}
	}
}
