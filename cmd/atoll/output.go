package main

import (
	"errors"
	"io"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// An output is our stdout or stderr as the target of a command's output. After a write error it closes broken and
// discards the rest. writeError returns the error.
type output struct {
	w      io.Writer
	broken chan struct{}

	mu  sync.Mutex
	err error // guarded by mu
}

func newOutput(w io.Writer) *output { return &output{w: w, broken: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return len(p), nil
	}
	if _, err := o.w.Write(p); err != nil {
		o.err = err
		close(o.broken)
	}
	return len(p), nil
}

// writeError returns the write error, or nil if there is none or the reader has closed the pipe.
func (o *output) writeError() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if errors.Is(o.err, errBrokenPipe) {
		return nil
	}
	return o.err
}

// A head is an atoll.Head that can be read while the command still writes.
type head struct {
	mu   sync.Mutex
	kept atoll.Head // guarded by mu
}

func newHead(limit atoll.Bytes) *head { return &head{kept: atoll.Head{Limit: int64(limit)}} }

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kept.Write(p)
}
