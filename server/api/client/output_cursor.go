package client

import (
	"io"
	"sync"
)

// An outputCursor is a writer with the offset of the next byte that it gets.
type outputCursor struct {
	w io.Writer

	mu   sync.Mutex
	next int64
	err  error // last error of the writer
}

// Write implements io.Writer.
func (p *outputCursor) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next += int64(n)
	if err != nil {
		p.err = err
	}
	return n, err
}

// startAt sets the first offset. p may be nil.
func (p *outputCursor) startAt(from int64) {
	if p != nil {
		p.seekTo(from)
	}
}

func (p *outputCursor) seekTo(to int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = to
}

// nextOffset returns the offset of the next byte, or 0 if p is nil.
func (p *outputCursor) nextOffset() int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// writeError returns the last error of the writer. p may be nil.
func (p *outputCursor) writeError() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// activeWriter returns p, or nil if p is nil or its writer has failed.
func (p *outputCursor) activeWriter() io.Writer {
	if p == nil || p.writeError() != nil {
		return nil
	}
	return p
}
