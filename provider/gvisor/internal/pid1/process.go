//go:build linux

package pid1

import (
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Streams are the client's ends of the streams of a process. A Process owns and closes them. One with a terminal uses no
// Stderr.
type Streams struct{ Stdin, Stdout, Stderr *os.File }

func (s Streams) closeFiles() {
	for _, f := range []*os.File{s.Stdin, s.Stdout, s.Stderr} {
		_ = f.Close() // which a nil file survives
	}
}

// A Process is a child of the first process.
type Process struct {
	in     *Init
	handle Handle
	ended  chan struct{}
	status unix.WaitStatus // valid when ended is closed
	err    error           // likewise

	// Only Init.serveLine uses these.
	outputs [2]*output // of stdout, which is a terminal's, and stderr; nil without
	input   *input     // nil without
	exited  bool       // its status is known
	keys    keyboard
}

// A Handle finds a process again in a copy of its sandbox. The numbers are descriptors of the program, 0 for none.
type Handle struct {
	PID    int  `json:"pid"`
	Stdin  int  `json:"stdin,omitempty"` // of a terminal: its other side, which stays open until the process has ended
	Stdout int  `json:"stdout"`
	Stderr int  `json:"stderr,omitempty"`
	TTY    bool `json:"tty,omitempty"`
}

// PID returns the number of the process inside.
func (p *Process) PID() int { return p.handle.PID }

// Handle returns the handle of the process while the Init is on hold.
func (p *Process) Handle() Handle {
	h := Handle{PID: p.handle.PID, TTY: p.handle.TTY}
	switch {
	case h.TTY && !p.exited:
		h.Stdin = p.handle.Stdin
	case !h.TTY && p.input != nil:
		h.Stdin = p.input.fd
	}
	for i, o := range p.outputs {
		if o.isOpen() {
			*[]*int{&h.Stdout, &h.Stderr}[i] = o.fd
		}
	}
	return h
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait blocks until the process has ended, or until the first process has, which is ErrLost.
func (p *Process) Wait() (unix.WaitStatus, error) {
	<-p.ended
	return p.status, p.err
}

// Resize sets the size of the process's terminal.
func (p *Process) Resize(ctx context.Context, rows, cols uint16) error {
	return p.in.runCall(ctx, func() error {
		if !p.handle.TTY || !p.outputs[0].isOpen() {
			return &Error{What: "terminal", Err: unix.ENOTTY}
		}
		l := newList()
		set := l.AddCall(unix.SYS_IOCTL, uint64(p.handle.Stdout), unix.TIOCSWINSZ, l.AddBytes(windowSize(rows, cols)))
		w, err := p.in.line.doList(l)
		if err != nil {
			return err
		}
		return w.Check("terminal", set)
	})
}

// An output is a stream that a process writes. The program reads it only when all before has been delivered.
type output struct {
	fd      int
	bytes   chan []byte // nil once the stream has ended
	busy    bool        // bytes are being delivered
	early   []byte      // for delivery before the program is asked for more
	drained bool        // all that the process had written before its end has been delivered
}

// isOpen reports whether the process, or a descendant, can write more. o may be nil.
func (o *output) isOpen() bool { return o != nil && o.bytes != nil }

// insertBytes adds b to the output.
func (o *output) insertBytes(b []byte) {
	switch {
	case o.bytes == nil:
	case o.busy:
		o.early = append(o.early, b...)
	default:
		o.busy = true
		o.bytes <- b
	}
}

// deliverNext continues after a delivery.
func (o *output) deliverNext() error {
	early := o.early
	o.busy, o.early = false, nil
	if len(early) > 0 {
		o.insertBytes(early)
	}
	return nil
}

func (o *output) finishOutput() {
	if o.bytes != nil {
		close(o.bytes)
		o.bytes = nil
	}
}

// deliverOutput writes what arrives in o to f until the stream ends. If nobody reads f any more, it discards the rest.
func (p *Process) deliverOutput(o *output, bytes <-chan []byte, f *os.File) {
	defer f.Close()
	for b := range bytes {
		_, _ = f.Write(b)
		p.in.queueCall(o.deliverNext)
	}
}

// An input is a stream that a process reads.
type input struct {
	fd      int
	file    *os.File
	pending []byte
	held    bool      // pending waits
	taken   chan bool // has an element after pending was written: whether the process reads on
}

// feedInput has the program write what f has to the process's input.
func (p *Process) feedInput(input *input) {
	defer input.file.Close()
	buf := make([]byte, readSize)
	for {
		n, err := input.file.Read(buf)
		if n > 0 {
			p.in.queueCall(func() error {
				if p.input == nil {
					input.taken <- false
				}
				input.pending = buf[:n]
				return nil
			})
			select {
			case more := <-input.taken:
				if !more {
					return
				}
			case <-p.in.lost:
				return
			}
		}
		if err != nil {
			break
		}
	}
	if !p.handle.TTY {
		p.in.queueCall(p.closeInput)
	}
}

// closeInput closes the input of a process without a terminal.
func (p *Process) closeInput() error {
	if p.input == nil {
		return nil
	}
	fd := p.input.fd
	p.dropInput()
	return p.in.closeAll(fd)
}

// dropInput forgets the input, which has ended.
func (p *Process) dropInput() {
	if p.input != nil && len(p.input.pending) > 0 {
		p.input.taken <- false
	}
	p.input = nil
}

// addEvents adds what to wait for, and reports whether there may be more.
func (p *Process) addEvents(add func(fd int, events uint16, handle func() error)) bool {
	connected := p.input != nil
	for _, o := range p.outputs {
		if !o.isOpen() {
			continue
		}
		connected = true
		if !o.busy {
			add(o.fd, unix.POLLIN, func() error { return p.readOutput(o) })
		}
	}
	if p.input != nil && len(p.input.pending) > 0 && !p.input.held {
		add(p.input.fd, unix.POLLOUT, p.writeInput)
	}
	return connected
}

// isTemporary reports whether err says that a call has to be repeated later.
func isTemporary(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

func (p *Process) readOutput(o *output) error {
	b, err := p.in.line.readStream(o.fd)
	var inside *Error
	switch {
	case errors.As(err, &inside) && isTemporary(err):
		o.drained = p.exited
		return nil
	case err != nil && inside == nil:
		return err
	case len(b) > 0:
		o.busy = true
		o.bytes <- b
		return nil
	}
	o.finishOutput()
	if p.handle.TTY {
		p.dropInput()
	}
	if err == nil {
		return nil
	}
	return p.in.closeAll(o.fd) // a terminal that no process has open
}

func (p *Process) writeInput() error {
	switch {
	case p.input == nil: // the terminal has just ended
		return nil
	case p.handle.TTY:
		return p.typeInput()
	}
	return p.writePlain(len(p.input.pending))
}

// writePlain has the program write n bytes of the pending input.
func (p *Process) writePlain(n int) error {
	input := p.input
	l := newList()
	write := l.AddCall(unix.SYS_WRITE, uint64(input.fd), l.AddBytes(input.pending[:n]), uint64(n))
	w, err := p.in.line.doList(l)
	if err != nil {
		return err
	}
	err = w.Check("write", write)
	switch {
	case err == nil:
		input.dropPending(min(int(w.GetResult(write)), n))
		return nil
	case isTemporary(err):
		return nil
	case p.handle.TTY:
		input.dropPending(len(input.pending))
		return nil
	}
	return p.closeInput()
}

// dropPending drops n bytes of the pending input, and asks for more when there is none.
func (i *input) dropPending(n int) {
	i.pending = i.pending[n:]
	if len(i.pending) == 0 {
		i.taken <- true
	}
}

// recordExit records the exit of the process.
func (p *Process) recordExit(status unix.WaitStatus) error {
	p.status, p.exited = status, true
	if p.handle.TTY {
		return p.in.closeAll(p.handle.Stdin)
	}
	return p.closeInput()
}

// finishProcess announces the exit of the process once all that it had written before has been delivered, and reports whether
// it has.
func (p *Process) finishProcess() (done bool, err error) {
	for _, o := range p.outputs {
		for o.isOpen() && !o.busy && !o.drained {
			if err := p.readOutput(o); err != nil {
				return false, err
			}
		}
		if o.isOpen() && !o.drained {
			return false, nil
		}
	}
	close(p.ended)
	return true, nil
}

// adoptProcess connects a process to streams. Only serveLine calls it.
func (in *Init) adoptProcess(h Handle, streams Streams) *Process {
	p := &Process{in: in, handle: h, ended: make(chan struct{})}
	if status, ok := in.early[h.PID]; ok {
		p.status, p.exited = status, true
		in.ending = append(in.ending, p)
		if h.TTY {
			in.queueCall(func() error { return in.closeAll(h.Stdin) })
		}
	} else {
		in.started[h.PID] = p
	}
	in.connected = append(in.connected, p)
	for i, fd := range []int{h.Stdout, h.Stderr} {
		f := []*os.File{streams.Stdout, streams.Stderr}[i]
		if fd <= 0 {
			_ = f.Close()
			continue
		}
		o := &output{fd: fd, bytes: make(chan []byte, 1)}
		p.outputs[i] = o
		go p.deliverOutput(o, o.bytes, f)
	}
	fd := h.Stdin
	if h.TTY {
		fd = h.Stdout
	}
	if fd <= 0 || p.exited {
		_ = streams.Stdin.Close()
		return p
	}
	p.input = &input{fd: fd, file: streams.Stdin, taken: make(chan bool, 2)}
	go p.feedInput(p.input)
	return p
}

// Adopt returns a process that was started in the sandbox of which this one is a copy. It owns streams, also if it fails.
func (in *Init) Adopt(ctx context.Context, h Handle, streams Streams) (p *Process, err error) {
	err = in.runCall(ctx, func() error { p = in.adoptProcess(h, streams); return nil })
	if err != nil {
		streams.closeFiles()
	}
	return p, err
}

// AdoptNoMore says that there is no more process to adopt. It closes the streams of the others.
func (in *Init) AdoptNoMore(ctx context.Context, others []Handle) error {
	var fds []int
	for _, h := range others {
		fds = append(fds, h.Stdin, h.Stdout, h.Stderr)
	}
	fds = slices.DeleteFunc(fds, func(fd int) bool { return fd <= 0 })
	return in.runCall(ctx, func() error {
		in.early = nil
		return in.closeAll(fds...)
	})
}
