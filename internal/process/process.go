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
	info    atoll.ProcessStatus // what never changes
	handle  Handle              // nil for one that was loaded
	started time.Time
	openIn  bool // Command.OpenStdin

	stdout, stderr *ring
	out, err       *os.File // what the pumps read
	tty            bool
	master         bool // in and out are a terminal's master

	// replica is the terminal's other side. It stays open here until the process
	// has ended: a process may close its own just before, and if then nobody had
	// it open the end of output would hang up on the process.
	replica *os.File

	inMu  sync.Mutex
	in    *os.File     // nil once closed; the terminal's master is never closed here
	taken atomic.Int64 // bytes of input that it, or its pipe or terminal, has taken

	timer    *time.Timer
	timedOut atomic.Bool
	killed   chan struct{} // closed when the timer's Kill has succeeded, or was given up
	exited   chan struct{} // closed when handle's Wait has returned

	exit  atomic.Pointer[atoll.Exit] // set once the process itself has ended
	ended chan struct{}              // closed when the output has ended too, or the table gave up
}

// run takes care of the process until it has ended.
func (p *process) run(t *Table) {
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
	p.drain()
	t.retire(p)
	close(p.ended)
}

// drain waits for the end of the output, but not for those who inherited the
// process's streams and still hold them.
func (p *process) drain() {
	p.hurry(p.out, p.stdout)
	p.hurry(p.err, p.stderr)
	<-p.stdout.done
	<-p.stderr.done
}

// hurry gives the pump of r until DrainTimeout from now.
func (p *process) hurry(f *os.File, r *ring) {
	select {
	case <-r.done:
		return
	default:
	}
	err := f.SetReadDeadline(time.Now().Add(atoll.DrainTimeout))
	if errors.Is(err, os.ErrNoDeadline) { // a terminal, on systems that cannot poll one
		time.AfterFunc(atoll.DrainTimeout, r.finish)
	}
}

// pump reads f into r to the end, then closes f. When the time to drain is up
// it finishes r and goes on reading into nowhere, so that a descendant that
// still writes is neither blocked nor killed by SIGPIPE.
func pump(f *os.File, r *ring) {
	defer f.Close()
	defer r.finish()
	chunk := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(chunk)
	buf := chunk[:]
	for {
		n, err := f.Read(buf)
		r.write(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drainPipe(f, r, buf)
			r.finish()
			_ = f.SetReadDeadline(time.Time{})
			continue
		}
		if err != nil { // EOF; EIO from a terminal that nobody has open any longer; closed
			return
		}
	}
}

// drainPipe reads what the pipe holds right now: a slow reader may have kept
// the pump away from it until the deadline had passed.
func drainPipe(f *os.File, r *ring, buf []byte) {
	const pipeSize = 64 << 10
	for total := 0; total < pipeSize; {
		_ = f.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // a read that need not wait comes first
		n, err := f.Read(buf)
		r.write(buf[:n])
		total += n
		if err != nil {
			return
		}
	}
}

// feed copies r to the process's stdin until r ends, which closes it, or ctx
// does. When r fails, own says that nobody else may supply more.
func (p *process) feed(ctx context.Context, r io.Reader, own bool) {
	chunk := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(chunk)
	buf := chunk[:]
	for {
		n, err := r.Read(buf)
		if ctx.Err() != nil {
			return
		}
		if n > 0 && p.input(buf[:n]) != nil {
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

// input writes b to the process's stdin or terminal. It may block.
func (p *process) input(b []byte) error {
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

// endInput is the end of input from a client. A terminal stays open: its end
// of file is a character, which clients send themselves.
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

// killAgain is how long after a process could not be killed that is tried again:
// it may be in a sandbox that is paused.
const killAgain = time.Second

// expire is called when Command.Timeout is over. It returns when the process was
// killed, or has ended.
func (p *process) expire() {
	defer close(p.killed)
	p.timedOut.Store(true)
	for p.handle.Kill() != nil {
		select {
		case <-p.exited:
			return
		case <-time.After(killAgain):
		}
	}
}

// hold keeps both streams for their first readers, for so long.
func (p *process) hold(d time.Duration) {
	for _, r := range []*ring{p.stdout, p.stderr} {
		held := r.hold()
		time.AfterFunc(d, func() { r.unhold(held) })
	}
}

// kept is how much memory the output of a process that has ended takes.
func (p *process) kept() int64 { return p.stdout.kept() + p.stderr.kept() }

// empty forgets it, unless somebody reads it, and says how much that was.
func (p *process) empty() int64 { return p.stdout.empty() + p.stderr.empty() }

// release lets the pumps run whatever readers do.
func (p *process) release() {
	p.stdout.release()
	p.stderr.release()
}

// abandon ends a process whose exit will not be seen.
func (p *process) abandon() {
	if !p.exit.CompareAndSwap(nil, &atoll.Exit{Code: -1, Reason: "the sandbox stopped before its exit was seen"}) {
		return
	}
	p.closeStdin()
	closeFiles(p.replica)
	p.stdout.finish()
	p.stderr.finish()
	close(p.ended)
}

func (p *process) status() atoll.ProcessStatus {
	st := p.info
	st.Stdin, st.Stdout, st.Stderr = p.taken.Load(), p.stdout.status(), p.stderr.status()
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
	if err := await(ctx, h.ended); err != nil {
		return atoll.Exit{}, err
	}
	if h.delivered != nil {
		if err := await(ctx, h.delivered); err != nil {
			return atoll.Exit{}, err
		}
	}
	exit := *h.exit.Load()
	if exit.Code < 0 {
		return atoll.Exit{}, atoll.E("wait", h.id, atoll.ErrStopped, nil)
	}
	return exit, nil
}

// await prefers what has happened to a ctx that has ended.
func await(ctx context.Context, done <-chan struct{}) error {
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

// Attach implements atoll.Process. With neither Stdout nor Stderr it returns
// when Stdin has ended or the process has.
func (h *handle) Attach(ctx context.Context, a *atoll.Attachment) error {
	att, err := h.attach(a)
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
			h.feed(feedCtx, a.Stdin, false)
		}()
	}
	if len(att.outs) > 0 || fed == nil {
		return att.copy(ctx)
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
