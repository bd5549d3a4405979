package api

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// An outflow sends on one channel, as fast as the other side reads.
type outflow struct {
	link *link
	ch   byte

	mu     sync.Mutex
	more   sync.Cond // there is more credit, or err
	opened bool
	credit int64
	err    error
}

// open lets the first window be sent.
func (f *outflow) open() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened, f.credit = true, window
	f.more.Broadcast()
}

func (f *outflow) grant(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.opened || n <= 0 || n > window-f.credit {
		return violation("stream %s: a window of %d bytes more is not possible", channelNames[f.ch], n)
	}
	f.credit += n
	f.more.Broadcast()
	return nil
}

// end makes Write fail.
func (f *outflow) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.more.Broadcast()
}

// take waits for credit and takes at most most of it.
func (f *outflow) take(most int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.credit == 0 && f.err == nil {
		f.more.Wait()
	}
	if f.err != nil {
		return 0, f.err
	}
	n := min(int64(most), f.credit, maxData)
	f.credit -= n
	return int(n), nil
}

// Write implements io.Writer. It blocks while the other side does not read.
func (f *outflow) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		m, err := f.take(len(p))
		if err != nil {
			return n, err
		}
		if err := f.frame(p[:m]); err != nil {
			return n, atoll.E("", "", atoll.ErrUnavailable, err) // the other side was lost
		}
		n += m
		p = p[m:]
	}
	return n, nil
}

func (f *outflow) frame(p []byte) error {
	frame := frames.Get().(*[maxMessage + 1]byte)
	defer frames.Put(frame)
	frame[0] = f.ch
	n := copy(frame[1:], p)
	return f.link.ws.Write(context.Background(), websocket.MessageBinary, frame[:1+n])
}

// An inflow holds what was received on one channel until it is read.
type inflow struct {
	link *link
	ch   byte

	mu      sync.Mutex
	more    sync.Cond // there is more to read, or err
	buf     bytes.Buffer
	taken   int64 // bytes ever read
	ungiven int64 // of them, those for which no window was given back yet
	gaps    []mark
	dropped bool  // nobody reads any longer
	err     error // why no more will come: io.EOF at the end
}

// A mark is a gap before byte at of what is received.
type mark struct {
	at     int64
	stream atoll.Stream
	gap    gap
}

// put appends p, for which the other side must have had a window.
func (f *inflow) put(p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int64(f.buf.Len())+f.ungiven+int64(len(p)) > window {
		return violation("stream %s: more was sent than the window allows", channelNames[f.ch])
	}
	if f.err != nil {
		return violation("stream %s: more was sent after its end", channelNames[f.ch])
	}
	if !f.dropped {
		f.buf.Write(p)
		f.more.Signal()
	}
	return nil
}

// skip notes that bytes are missing behind what was received so far.
func (f *inflow) skip(stream atoll.Stream, g gap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gaps = append(f.gaps, mark{f.taken + int64(f.buf.Len()), stream, g})
	f.more.Signal()
}

// end says that no more will come; what was received can still be read.
func (f *inflow) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.more.Broadcast()
}

// next waits for something to read. It returns either a gap, or bytes up to
// the next one, or the end.
func (f *inflow) next(p []byte) (n int, m *mark, err error) {
	f.mu.Lock()
	for f.buf.Len() == 0 && len(f.gaps) == 0 && f.err == nil {
		f.more.Wait()
	}
	if len(f.gaps) > 0 {
		if first := f.gaps[0]; first.at == f.taken {
			f.gaps = f.gaps[1:]
			f.mu.Unlock()
			return 0, &first, nil
		}
		p = p[:min(int64(len(p)), f.gaps[0].at-f.taken)]
	}
	if f.buf.Len() == 0 {
		defer f.mu.Unlock()
		return 0, nil, f.err
	}
	n, _ = f.buf.Read(p)
	f.taken += int64(n)
	f.ungiven += int64(n)
	give := int64(0)
	if f.ungiven >= window/2 && f.err == nil {
		give, f.ungiven = f.ungiven, 0
	}
	f.mu.Unlock()
	if give > 0 {
		_ = f.link.send(message{Type: msgWindow, Stream: channelNames[f.ch], Bytes: give}) // a broken link is noticed by its reader
	}
	return n, nil, nil
}

// Read implements io.Reader, for a channel without gaps.
func (f *inflow) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, _, err := f.next(p)
	return n, err
}

// drop says that nobody will read any more, here and to the other side. Whoever was lost
// may come again.
func (f *inflow) drop(lost bool) {
	f.mu.Lock()
	f.dropped = true
	f.buf.Reset()
	over := f.err != nil
	f.mu.Unlock()
	if !over {
		_ = f.link.send(message{Type: msgClose, Stream: channelNames[f.ch], Abort: lost}) // as above
	}
}

const deliverSize = 32 << 10

var chunks = sync.Pool{New: func() any { return new([deliverSize]byte) }}

// deliver writes what is received to w until the channel ends, for whatever
// reason, or w fails, which is the error returned. onGap may be nil.
func (f *inflow) deliver(w io.Writer, onGap func(s atoll.Stream, from, to int64)) error {
	buf := chunks.Get().(*[deliverSize]byte)
	defer chunks.Put(buf)
	for {
		n, m, err := f.next(buf[:])
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
			f.drop(isLoss(err))
			return err
		}
	}
}
