package fakemodal

import (
	"context"
	"errors"
	"io"
	"sync"
)

// inputLimit is the number of unread bytes at which putMessage blocks.
const inputLimit = 4 << 20

// An input is the stdin of a process. Clients send numbered messages; the process reads each of them
// once, in the order of the numbers.
type input struct {
	mu      sync.Mutex
	next    uint64             // number of the next message
	early   map[uint64]message // messages that arrived before their predecessors
	data    []byte             // unread data
	eof     bool               // data is followed by the end
	closed  bool               // the process has ended
	changed chan struct{}      // closed at each change
}

type message struct {
	data []byte
	eof  bool
}

func newInput() *input {
	return &input{next: 1, early: map[uint64]message{}, changed: make(chan struct{})}
}

// errInputClosed reports that the process has ended.
var errInputClosed = errors.New("process has ended")

// putMessage adds a message. It blocks while the process has inputLimit bytes to read.
func (in *input) putMessage(ctx context.Context, number uint64, m message) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for number == in.next && len(in.data) >= inputLimit && !in.closed {
		changed := in.changed
		in.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		in.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if in.closed {
		return errInputClosed
	}
	if number < in.next {
		return nil // a repeated message
	}
	in.early[number] = m
	for {
		m, ok := in.early[in.next]
		if !ok {
			break
		}
		delete(in.early, in.next)
		in.next++
		if !in.eof {
			in.data = append(in.data, m.data...)
			in.eof = m.eof
		}
	}
	in.notifyReaders()
	return nil
}

// notifyReaders wakes all waiting calls. The caller holds mu.
func (in *input) notifyReaders() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// Read implements io.Reader for the process. It blocks until there is data or the end.
func (in *input) Read(p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.data) == 0 {
		if in.eof || in.closed {
			return 0, io.EOF
		}
		changed := in.changed
		in.mu.Unlock()
		<-changed
		in.mu.Lock()
	}
	n := copy(p, in.data)
	in.data = in.data[n:]
	in.notifyReaders()
	return n, nil
}

// closeInput ends Read and putMessage, because the process has ended.
func (in *input) closeInput() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.notifyReaders()
}
