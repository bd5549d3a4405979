package mux

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// A stream that outlives its ends, such as a serial port, may hold anything when a host
// comes to it: half of what the last one sent, and what was said to that one. So what is
// said is cut into pieces, each after its length, and:
//
//   - A host begins with a run of zeros that is longer than any piece, and a greeting
//     with a random number. Whatever the guest was in the middle of, it meets zeros
//     where a length should be, and looks for a greeting from there on.
//   - The guest answers with that number. The host drops all before that.
//
// What a guest answers it makes of its own, and a greeting in the middle of a piece is
// not one: neither end can be made to say one by what passes through it.

const (
	maxPiece = 16 << 10 // of bytes; a new host has to send as many zeros
	mark     = 0xa7     // the first byte of a length; three follow
	headSize = 4
	nonceLen = 16
)

// What greetings and answers begin with.
var (
	hello   = []byte("\x00\r\natoll line 1: hello\r\n")
	welcome = []byte("\x00\r\natoll line 1: welcome\r\n")
)

// errGreeted is what a guest reads when another host has come.
var errGreeted = errors.New("line: another host has come")

// A pipe is what one host and the guest say to each other on a stream.
type pipe struct {
	stream  io.ReadWriteCloser
	in      *bufio.Reader
	reading sync.Mutex
	left    int // of the piece that is being read

	mu     sync.Mutex // held while a piece is written
	buf    []byte
	closed bool
}

func newPipe(stream io.ReadWriteCloser) *pipe {
	return &pipe{stream: stream, in: bufio.NewReaderSize(stream, 4*maxPiece)}
}

// Read implements io.Reader. It is errGreeted where a length should be and is not.
func (p *pipe) Read(b []byte) (int, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	return p.read(b)
}

func (p *pipe) read(b []byte) (int, error) {
	for p.left == 0 {
		head, err := p.in.Peek(headSize)
		if err != nil {
			return 0, err
		}
		n := int(binary.BigEndian.Uint32(head) & 0xffffff)
		if head[0] != mark || n > maxPiece {
			return 0, errGreeted
		}
		_, _ = p.in.Discard(headSize) // it is there
		p.left = n
	}
	n, err := p.in.Read(b[:min(len(b), p.left)])
	p.left -= n
	return n, err
}

// Write implements io.Writer.
func (p *pipe) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		size := min(len(b), maxPiece)
		if err = p.piece(b[:size]); err == nil {
			n += size
		}
		b = b[size:]
	}
	return n, err
}

func (p *pipe) piece(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return io.ErrClosedPipe
	}
	p.buf = binary.BigEndian.AppendUint32(p.buf[:0], mark<<24|uint32(len(b)))
	p.buf = append(p.buf, b...)
	_, err := p.stream.Write(p.buf)
	return err
}

// seek reads until it finds greeting, and returns the number after it. The caller holds
// reading.
func (p *pipe) seek(greeting []byte) (nonce [nonceLen]byte, err error) {
	for {
		if _, err := p.in.Peek(len(greeting)); err != nil {
			return nonce, err
		}
		have, _ := p.in.Peek(p.in.Buffered())
		at := bytes.Index(have, greeting)
		if at < 0 {
			_, _ = p.in.Discard(len(have) - len(greeting) + 1) // its end may be the beginning of one
			continue
		}
		_, _ = p.in.Discard(at + len(greeting))
		_, err := io.ReadFull(p.in, nonce[:])
		return nonce, err
	}
}

// Host begins to speak to the guest at the other end of stream, which it owns from then
// on, and returns when that has answered. When ctx ends before, the stream is closed.
func Host(ctx context.Context, stream io.ReadWriteCloser) (*Session, error) {
	p := newPipe(stream)
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	err := p.greet()
	if !stop() || err != nil {
		stream.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return Client(p)
}

// greet says who comes, and waits for the answer to that.
func (p *pipe) greet() error {
	greeting := append(make([]byte, maxPiece+2*headSize), hello...)
	begin := len(greeting)
	greeting = append(greeting, make([]byte, nonceLen)...)
	_, _ = rand.Read(greeting[begin:]) // never fails
	said := make(chan error, 1)
	go func() { // a guest that still speaks to the last host is to be read meanwhile
		_, err := p.stream.Write(greeting)
		said <- err
	}()
	for {
		nonce, err := p.seek(welcome)
		if err != nil {
			p.stream.Close()
			return errors.Join(err, <-said)
		}
		if bytes.Equal(nonce[:], greeting[begin:]) {
			return <-said
		}
	}
}

// Close implements io.Closer. It closes the stream.
func (p *pipe) Close() error { return p.stream.Close() }

// Guest answers the hosts that come to stream, one after the other, and calls serve with
// a session for each, in a goroutine of its own, until the stream ends: that error is
// returned, once the last serve has returned. The session of a host ends when
// the next one comes.
func Guest(stream io.ReadWriteCloser, serve func(*Session)) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	defer stream.Close()
	in := newPipe(stream).in
	for {
		p := &pipe{stream: stream, in: in}
		nonce, err := p.seek(hello)
		if err != nil {
			return err
		}
		if _, err := stream.Write(append(bytes.Clone(welcome), nonce[:]...)); err != nil {
			return err
		}
		v := visit{p}
		s, err := Server(v, 0)
		if err != nil {
			return err
		}
		serving.Go(func() { serve(s) })
		<-s.Done()
		_ = v.Close() // the session is about to, which may be too late for the next host
		if err := p.drain(); !errors.Is(err, errGreeted) {
			return err
		}
	}
}

// A visit is a pipe of which a Close ends what is said to one host only.
type visit struct{ *pipe }

func (v visit) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	return nil
}

// drain reads what is still said to a session that has ended.
func (p *pipe) drain() error {
	p.reading.Lock() // the session may be about to see why it ends
	defer p.reading.Unlock()
	var waste [4 << 10]byte
	for {
		if _, err := p.read(waste[:]); err != nil {
			return err
		}
	}
}
