package process

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A process is one entry of a Table.
type process struct {
	id      string
	info    atoll.ProcessStatus // only the fields that never change
	handle  Handle              // nil for a loaded process
	started time.Time
	openIn  bool // Command.OpenStdin

	stdout, stderr *ring
	out, err       *os.File // the pumps read them
	tty            bool
	master         bool // in and out are a terminal's master

	// replica is the terminal's other side. It stays open here until the process has
	// ended: the process may close its own just before, and without another open
	// descriptor the kernel would then hang up the process.
	replica *os.File

	inMu  sync.Mutex
	in    *os.File     // nil once closed; the terminal's master is never closed here
	taken atomic.Int64 // bytes of input that the process, or its pipe or terminal, has accepted

	timer    *time.Timer
	timedOut atomic.Bool
	killed   chan struct{} // closed when the timer's Kill has succeeded, or the process has ended
	exited   chan struct{} // closed when handle's Wait has returned

	exit  atomic.Pointer[atoll.Exit] // set once the process itself has ended
	ended chan struct{}              // closed when the output has ended too, or after abandonProcess
}

// superviseProcess waits for the end of the process and of its output, and records the exit.
func (p *process) superviseProcess(t *Table) {
	exit := p.handle.Wait()
	close(p.exited)
	exit.Duration = atoll.Duration(time.Since(p.started))
	closeFiles(p.replica)
	if p.timer != nil && !p.timer.Stop() {
		<-p.killed
	}
	if p.timedOut.Load() {
		exit.Code, exit.TimedOut = atoll.ExitTimedOut, true
	}
	if !p.exit.CompareAndSwap(nil, &exit) {
		return
	}
	p.closeStdin()
	p.drainOutput()
	t.retireProcess(p)
	close(p.ended)
}

// drainOutput waits for the end of the output, but not for descendants that still have the
// process's streams open.
func (p *process) drainOutput() {
	p.setDrainDeadline(p.out, p.stdout)
	p.setDrainDeadline(p.err, p.stderr)
	<-p.stdout.done
	<-p.stderr.done
}

// setDrainDeadline ends the pump of r after atoll.DrainTimeout.
func (p *process) setDrainDeadline(f *os.File, r *ring) {
	select {
	case <-r.done:
		return
	default:
	}
	err := f.SetReadDeadline(time.Now().Add(atoll.DrainTimeout))
	if errors.Is(err, os.ErrNoDeadline) { // a terminal, on systems that cannot poll one
		time.AfterFunc(atoll.DrainTimeout, r.finishStream)
	}
}

// pumpOutput reads f into r to the end, then closes f. After the drain deadline it finishes
// r and discards further output, so that a descendant that still writes is neither blocked
// nor killed by SIGPIPE.
func pumpOutput(f *os.File, r *ring) {
	defer f.Close()
	defer r.finishStream()
	chunk := chunkPool.Get().(*[chunkSize]byte)
	defer chunkPool.Put(chunk)
	buf := chunk[:]
	for {
		n, err := f.Read(buf)
		r.write(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drainPipe(f, r, buf)
			r.finishStream()
			_ = f.SetReadDeadline(time.Time{})
			continue
		}
		if err != nil { // EOF, closed, or EIO from a terminal that no process has open
			return
		}
	}
}

// drainPipe reads the current content of the pipe: a slow reader may have blocked the pump
// until after the deadline.
func drainPipe(f *os.File, r *ring, buf []byte) {
	const pipeSize = 64 << 10
	for total := 0; total < pipeSize; {
		_ = f.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // a read that need not wait ignores the deadline
		n, err := f.Read(buf)
		r.write(buf[:n])
		total += n
		if err != nil {
			return
		}
	}
}

// feedStdin copies r to the process's stdin until ctx or r ends. The end of r closes stdin;
// so does an error of r if own is set, which says that there is no other source of input.
func (p *process) feedStdin(ctx context.Context, r io.Reader, own bool) {
	chunk := chunkPool.Get().(*[chunkSize]byte)
	defer chunkPool.Put(chunk)
	buf := chunk[:]
	for {
		n, err := r.Read(buf)
		if ctx.Err() != nil {
			return
		}
		if n > 0 && p.writeInput(buf[:n]) != nil {
			return
		}
		if err == io.EOF || err != nil && own && !p.openIn {
			p.endInput()
		}
		if err != nil {
			return
		}
	}
}

// writeInput writes b to the process's stdin or terminal, and may block.
func (p *process) writeInput(b []byte) error {
	p.inMu.Lock()
	in := p.in
	p.inMu.Unlock()
	if in == nil {
		return os.ErrClosed
	}
	if t, ok := p.handle.(Terminal); ok && p.tty {
		err := t.Input(in, b)
		if err == nil {
			p.taken.Add(int64(len(b)))
		}
		return err
	}
	n, err := in.Write(b)
	p.taken.Add(int64(n))
	return err
}

// endInput closes stdin at the end of a client's input. A terminal stays open: its end of
// file is a character, which clients send themselves.
func (p *process) endInput() {
	if !p.tty {
		p.closeStdin()
	}
}

func (p *process) closeStdin() {
	p.inMu.Lock()
	defer p.inMu.Unlock()
	if p.in != nil && !p.master {
		_ = p.in.Close()
	}
	p.in = nil
}

// killRetryDelay is the time between attempts to kill a process: an attempt fails while the
// sandbox is paused.
const killRetryDelay = time.Second

// killOnTimeout kills the process at the end of Command.Timeout. It returns when it has
// killed the process, or when the process has ended.
func (p *process) killOnTimeout() {
	defer close(p.killed)
	p.timedOut.Store(true)
	for p.handle.Kill() != nil {
		select {
		case <-p.exited:
			return
		case <-time.After(killRetryDelay):
		}
	}
}

// holdOutput retains both streams for their first readers, for the time d at most.
func (p *process) holdOutput(d time.Duration) {
	for _, r := range []*ring{p.stdout, p.stderr} {
		held := r.holdContent()
		time.AfterFunc(d, func() { r.endHold(held) })
	}
}

// keptBytes returns the memory of the output of an ended process, in bytes.
func (p *process) keptBytes() int64 { return p.stdout.keptBytes() + p.stderr.keptBytes() }

// dropOutput drops the output, except streams with a reader, and returns the bytes freed.
func (p *process) dropOutput() int64 { return p.stdout.dropContent() + p.stderr.dropContent() }

// releaseRings makes the pumps run without waiting for readers.
func (p *process) releaseRings() {
	p.stdout.releaseWriter()
	p.stderr.releaseWriter()
}

// abandonProcess marks a process as ended if the table will not see its exit.
func (p *process) abandonProcess() {
	if !p.exit.CompareAndSwap(nil, &atoll.Exit{Code: -1, Reason: "the sandbox stopped before its exit was seen"}) {
		return
	}
	p.closeStdin()
	closeFiles(p.replica)
	p.stdout.finishStream()
	p.stderr.finishStream()
	close(p.ended)
}

func (p *process) currentStatus() atoll.ProcessStatus {
	st := p.info
	st.Stdin, st.Stdout, st.Stderr = p.taken.Load(), p.stdout.streamStatus(), p.stderr.streamStatus()
	if exit := p.exit.Load(); exit != nil {
		e := *exit
		st.Exit = &e
	}
	return st
}

// A handle is an atoll.Process.
type handle struct {
	*process
	delivered <-chan struct{} // closed when Exec's own streams have been written; nil without any
}

// ID implements atoll.Process.
func (h *handle) ID() string { return h.id }

// Wait implements atoll.Process.
func (h *handle) Wait(ctx context.Context) (atoll.Exit, error) {
	if err := awaitDone(ctx, h.ended); err != nil {
		return atoll.Exit{}, err
	}
	if h.delivered != nil {
		if err := awaitDone(ctx, h.delivered); err != nil {
			return atoll.Exit{}, err
		}
	}
	exit := *h.exit.Load()
	if exit.Code < 0 {
		return atoll.Exit{}, atoll.E("wait", h.id, atoll.ErrStopped, nil)
	}
	return exit, nil
}

// awaitDone waits for done or the end of ctx. If both have happened, it returns nil.
func awaitDone(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Signal implements atoll.Process.
func (h *handle) Signal(ctx context.Context, sig atoll.Signal) error {
	if sig < 1 || sig > 64 {
		return atoll.Errorf("signal", h.id, atoll.ErrInvalid, "signal %d: must be within 1..64", int(sig))
	}
	err := error(os.ErrProcessDone)
	switch {
	case h.exit.Load() != nil:
	case sig == atoll.SIGKILL:
		err = h.handle.Kill()
	default:
		err = h.handle.Signal(sig)
	}
	if errors.Is(err, os.ErrProcessDone) {
		return atoll.Errorf("signal", h.id, atoll.ErrStopped, "the process has ended")
	}
	if err != nil {
		return atoll.E("signal", h.id, atoll.KindOf(err), err)
	}
	return nil
}

// Attach implements atoll.Process. With neither Stdout nor Stderr it returns when Stdin or
// the process has ended.
func (h *handle) Attach(ctx context.Context, a *atoll.Attachment) error {
	att, err := h.newAttachment(a)
	if err != nil {
		return err
	}
	var fed chan struct{}
	if a.Stdin != nil {
		fed = make(chan struct{})
		feedCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			defer close(fed)
			h.feedStdin(feedCtx, a.Stdin, false)
		}()
	}
	if len(att.outs) > 0 || fed == nil {
		return att.copyOutput(ctx)
	}
	select {
	case <-fed:
		return ctx.Err()
	case <-h.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Resize implements atoll.Resizer.
func (h *handle) Resize(ctx context.Context, size atoll.Size) error {
	if !h.tty {
		return atoll.Errorf("resize", h.id, atoll.ErrInvalid, "the process has no terminal")
	}
	if r, ok := h.handle.(Remote); ok {
		if h.exit.Load() != nil {
			return atoll.Errorf("resize", h.id, atoll.ErrStopped, "the process has ended")
		}
		return r.Resize(ctx, size)
	}
	h.inMu.Lock()
	defer h.inMu.Unlock()
	if h.in == nil || h.exit.Load() != nil {
		return atoll.Errorf("resize", h.id, atoll.ErrStopped, "the process has ended")
	}
	err := setSize(h.in, size)
	if errors.Is(err, os.ErrClosed) {
		return atoll.Errorf("resize", h.id, atoll.ErrStopped, "the terminal has been closed")
	}
	if err != nil {
		return atoll.E("resize", h.id, atoll.ErrInternal, err)
	}
	if t, ok := h.handle.(Terminal); ok {
		t.Resized()
	}
	return nil
}

var (
	_ atoll.Process = (*handle)(nil)
	_ atoll.Resizer = (*handle)(nil)
)
