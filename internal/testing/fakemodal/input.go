package fakemodal

import (
	"context"
	"errors"
	"io"
	"sync"
)

// inputLimit is how much input waits for a process to read it.
const inputLimit = 4 << 20

// An input is what is sent to a process, in numbered messages, which are passed on in
// the order of their numbers, and once. It is what the process reads.
type input struct {
	mu      sync.Mutex
	next    uint64             // the number that is to come
	early   map[uint64]message // those that came before their turn
	data    []byte             // for the process
	eof     bool               // after data
	closed  bool               // nobody reads any longer
	changed chan struct{}      // closed at each change
}

type message struct {
	data []byte
	eof  bool
}

func newInput() *input {
	return &input{next: 1, early: map[uint64]message{}, changed: make(chan struct{})}
}

// errInputClosed says that the process has ended.
var errInputClosed = errors.New("the process has ended")

// putMessage takes a message. It waits while the process has much to read.
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
		return nil // it came before
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

// notifyReaders wakes all who wait. Callers hold mu.
func (in *input) notifyReaders() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// Read gives the process what has come.
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

// close says that nobody reads any longer.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.notifyReaders()
}
