package supervisor

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// A GuestProcesses serves engines whose processes belong to another program, the guest
// inside, and end with the engine. It interprets the errors of calls to the guest, and
// holds what remains of the main process.
type GuestProcesses struct {
	sandbox *Sandbox
	exited  <-chan struct{} // closed when the engine has ended

	mu   sync.Mutex
	main *process.Table
}

// NewGuestProcesses returns the GuestProcesses of an engine of s, which closes exited when
// it has ended.
func NewGuestProcesses(s *Sandbox, exited <-chan struct{}) *GuestProcesses {
	return &GuestProcesses{sandbox: s, exited: exited}
}

// Ended reports whether the engine has ended.
func (i *GuestProcesses) Ended() bool {
	select {
	case <-i.exited:
		return true
	default:
		return false
	}
}

// disconnectGrace is the longest time between a broken connection to the guest and the
// engine's end.
const disconnectGrace = time.Second

// Lost implements Engine: it waits for a moment, because a connection breaks before the
// engine has ended.
func (i *GuestProcesses) Lost(err error) bool {
	switch kind := atoll.KindOf(err); {
	case i.Ended():
		return true
	case kind != atoll.ErrUnavailable && kind != atoll.ErrInternal && kind != atoll.ErrStopped:
		return false // the guest answered, or ctx ended
	}
	select {
	case <-i.exited:
		return true
	case <-time.After(disconnectGrace):
		return false
	}
}

// causedByEnd reports whether err, of a call to the guest, is due to the end of the engine.
func (i *GuestProcesses) causedByEnd(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && i.Lost(err)
}

// Explain returns ErrStopped if err, of a call to the guest, is due to the end of the
// engine, else err.
func (i *GuestProcesses) Explain(ctx context.Context, op string, err error) error {
	if i.causedByEnd(ctx, err) {
		return atoll.E(op, i.sandbox.ID(), atoll.ErrStopped, nil)
	}
	return err
}

// Awake returns the error of a call that the guest cannot answer because the sandbox is
// paused or stalled; nil if it can.
func (i *GuestProcesses) Awake(op string) error {
	if i.sandbox.engine.Frozen() {
		return atoll.Errorf(op, i.sandbox.ID(), atoll.ErrConflict, "the sandbox is paused: resume it first")
	}
	if s, ok := i.sandbox.engine.(Staller); ok {
		if reason := s.Stalled(); reason != "" {
			return atoll.Errorf(op, i.sandbox.ID(), atoll.ErrExhausted, "%s", reason)
		}
	}
	return nil
}

// Remember stores what remains of the main process for the time after the engine's end.
func (i *GuestProcesses) Remember(main *process.Table) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.main = main
}

// Left returns what Remember stored; nil before.
func (i *GuestProcesses) Left() *process.Table {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.main
}

// WrapProcess returns p, a process inside, in a form that works while the engine runs and
// after it has ended.
func (i *GuestProcesses) WrapProcess(p atoll.Process) atoll.Process {
	return &guestProcess{atoll.ProcessLayer{Process: p}, i}
}

// WrapList returns list and err, the guest's answer, unless the engine has ended: then it
// returns what remains of the main process.
func (i *GuestProcesses) WrapList(ctx context.Context, list []atoll.ProcessStatus, err error) ([]atoll.ProcessStatus, error) {
	if !i.causedByEnd(ctx, err) {
		return list, err
	}
	if left := i.Left(); left != nil {
		return left.List(), nil
	}
	return nil, nil // the list went with the guest
}

// A guestProcess is a process that ends with the engine.
type guestProcess struct {
	atoll.ProcessLayer
	guest *GuestProcesses
}

// endedMain returns what remains of the process when the engine has ended: nil unless it is
// the main process.
func (p *guestProcess) endedMain() atoll.Process {
	left := p.guest.Left()
	if left == nil || p.ID() != atoll.MainProcess {
		return nil
	}
	main, err := left.Get(p.ID())
	if err != nil {
		return nil
	}
	return main
}

// Wait implements atoll.Process.
func (p *guestProcess) Wait(ctx context.Context) (atoll.Exit, error) {
	exit, err := p.ProcessLayer.Wait(ctx)
	if !p.guest.causedByEnd(ctx, err) {
		return exit, err
	}
	if main := p.endedMain(); main != nil {
		return main.Wait(ctx)
	}
	reason := "killed with its sandbox"
	if !p.guest.sandbox.Ending() {
		reason = p.guest.sandbox.DeathReason()
	}
	return atoll.Exit{Code: 137, Signal: atoll.SIGKILL, Reason: reason}, nil
}

// Signal implements atoll.Process.
func (p *guestProcess) Signal(ctx context.Context, sig atoll.Signal) error {
	if err := p.guest.Awake("signal"); err != nil {
		return err
	}
	err := p.guest.Explain(ctx, "signal", p.ProcessLayer.Signal(ctx, sig))
	if sig == atoll.SIGKILL && atoll.KindOf(err) == atoll.ErrStopped && p.guest.Ended() {
		return nil // the signal worked: the sandbox ended with its main process
	}
	return err
}

// Resize implements atoll.Resizer.
func (p *guestProcess) Resize(ctx context.Context, size atoll.Size) error {
	if err := p.guest.Awake("resize"); err != nil {
		return err
	}
	return p.guest.Explain(ctx, "resize", atoll.Resize(ctx, p.Process, size))
}

// Attach implements atoll.Process: a reader of the main process's output continues, after
// the engine's end, with the output that was saved.
func (p *guestProcess) Attach(ctx context.Context, a *atoll.Attachment) error {
	counted := *a
	out, errs := counter{Writer: a.Stdout}, counter{Writer: a.Stderr}
	if a.Stdout != nil {
		counted.Stdout = &out
	}
	if a.Stderr != nil {
		counted.Stderr = &errs
	}
	err := p.ProcessLayer.Attach(ctx, &counted)
	if !p.guest.causedByEnd(ctx, err) {
		return err
	}
	main := p.endedMain()
	if main == nil || a.StdoutFrom < 0 || a.StderrFrom < 0 {
		return atoll.E("attach", p.ID(), atoll.ErrStopped, nil)
	}
	rest := *a
	rest.StdoutFrom, rest.StderrFrom = a.StdoutFrom+out.n, a.StderrFrom+errs.n
	return main.Attach(ctx, &rest)
}

// A counter counts the bytes that are written to it.
type counter struct {
	io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}
