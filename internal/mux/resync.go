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

// A stream that outlives its ends, such as a serial port, may hold any bytes when a host connects: half a
// message of the previous host, and answers to it. So both ends cut their data into pieces, each after
// its length, and:
//
//   - A host begins with a run of zeros that is longer than any piece, and a greeting with a random
//     number. Wherever the guest was in its input, it reads zeros in place of a length, and looks for a
//     greeting from there on.
//   - The guest answers with that number. The host drops all bytes before the answer.
//
// The guest composes its answer itself, and a greeting in the middle of a piece does not count: data
// that passes through cannot make either end greet or answer.

const (
	maxPiece   = 16 << 10 // of bytes; a new host has to send as many zeros
	lengthMark = 0xa7     // the first byte of a length; three follow
	headSize   = 4
	nonceLen   = 16
)

// The prefixes of greetings and answers.
var (
	greetingPrefix = []byte("\x00\r\natoll line 1: hello\r\n")
	answerPrefix   = []byte("\x00\r\natoll line 1: welcome\r\n")
)

// errGreeted is the error of a guest's Read when another host has connected.
var errGreeted = errors.New("line: another host has connected")

// A pipe is the conversation of one host with the guest on a stream.
type pipe struct {
	stream  io.ReadWriteCloser
	in      *bufio.Reader
	reading sync.Mutex
	left    int // unread bytes of the current piece

	mu     sync.Mutex // held while a piece is written
	buf    []byte
	closed bool
}

func newPipe(stream io.ReadWriteCloser) *pipe {
	return &pipe{stream: stream, in: bufio.NewReaderSize(stream, 4*maxPiece)}
}

// Read implements io.Reader. It returns errGreeted if there is no length in place of one.
func (p *pipe) Read(b []byte) (int, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	return p.readPiece(b)
}

// readPiece is Read for callers that hold reading.
func (p *pipe) readPiece(b []byte) (int, error) {
	for p.left == 0 {
		head, err := p.in.Peek(headSize)
		if err != nil {
			return 0, err
		}
		n := int(binary.BigEndian.Uint32(head) & 0xffffff)
		if head[0] != lengthMark || n > maxPiece {
			return 0, errGreeted
		}
		_, _ = p.in.Discard(headSize) // it is buffered
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
		if err = p.writePiece(b[:size]); err == nil {
			n += size
		}
		b = b[size:]
	}
	return n, err
}

// writePiece writes a piece after its length.
func (p *pipe) writePiece(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return io.ErrClosedPipe
	}
	p.buf = binary.BigEndian.AppendUint32(p.buf[:0], lengthMark<<24|uint32(len(b)))
	p.buf = append(p.buf, b...)
	_, err := p.stream.Write(p.buf)
	return err
}

// seekGreeting reads until it finds greeting, and returns the number after it. The caller holds
// reading.
func (p *pipe) seekGreeting(greeting []byte) (nonce [nonceLen]byte, err error) {
	for {
		if _, err := p.in.Peek(len(greeting)); err != nil {
			return nonce, err
		}
		have, _ := p.in.Peek(p.in.Buffered())
		at := bytes.Index(have, greeting)
		if at < 0 {
			_, _ = p.in.Discard(len(have) - len(greeting) + 1) // its end may begin a greeting
			continue
		}
		_, _ = p.in.Discard(at + len(greeting))
		_, err := io.ReadFull(p.in, nonce[:])
		return nonce, err
	}
}

// Host greets the guest at the other end of stream, which it owns from then on, and returns when
// the guest has answered. If ctx ends first, Host closes the stream.
func Host(ctx context.Context, stream io.ReadWriteCloser) (*Session, error) {
	p := newPipe(stream)
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	err := p.sendGreeting()
	if !stop() || err != nil {
		stream.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return Client(p)
}

// sendGreeting sends a greeting, and waits for its answer.
func (p *pipe) sendGreeting() error {
	greeting := append(make([]byte, maxPiece+2*headSize), greetingPrefix...)
	begin := len(greeting)
	greeting = append(greeting, make([]byte, nonceLen)...)
	_, _ = rand.Read(greeting[begin:]) // never fails
	said := make(chan error, 1)
	go func() { // meanwhile read from a guest that still writes to the previous host
		_, err := p.stream.Write(greeting)
		said <- err
	}()
	for {
		nonce, err := p.seekGreeting(answerPrefix)
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

// Guest answers the hosts that connect to stream, one after the other, and calls serve with a
// session for each, in a goroutine of its own, until the stream ends. It returns the stream's error
// after the last serve has returned. The session of a host ends when the next one connects.
func Guest(stream io.ReadWriteCloser, serve func(*Session)) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	defer stream.Close()
	in := newPipe(stream).in
	for {
		p := &pipe{stream: stream, in: in}
		nonce, err := p.seekGreeting(greetingPrefix)
		if err != nil {
			return err
		}
		if _, err := stream.Write(append(bytes.Clone(answerPrefix), nonce[:]...)); err != nil {
			return err
		}
		v := hostPipe{p}
		s, err := Server(v, 0)
		if err != nil {
			return err
		}
		serving.Go(func() { serve(s) })
		<-s.Done()
		_ = v.Close() // the session does it too, but maybe too late for the next host
		if err := p.drainInput(); !errors.Is(err, errGreeted) {
			return err
		}
	}
}

// A hostPipe is a pipe whose Close ends only the data to one host.
type hostPipe struct{ *pipe }

func (v hostPipe) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	return nil
}

// drainInput reads and drops data for a session that has ended.
func (p *pipe) drainInput() error {
	p.reading.Lock() // the session may be about to read why it ends
	defer p.reading.Unlock()
	var waste [4 << 10]byte
	for {
		if _, err := p.readPiece(waste[:]); err != nil {
			return err
		}
	}
}
