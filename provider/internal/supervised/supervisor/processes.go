package supervisor

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// An Inside is for engines whose processes are another program's, inside of what the
// engine runs, and end with that: it says what their errors mean then, and knows what is
// left of the main process.
type GuestProcesses struct {
	sandbox *Sandbox
	exited  <-chan struct{} // the engine's

	mu   sync.Mutex
	main *process.Table
}

// NewGuestProcesses returns that of an engine of b, which closes exited when it has ended.
func NewGuestProcesses(s *Sandbox, exited <-chan struct{}) *GuestProcesses {
	return &GuestProcesses{sandbox: s, exited: exited}
}

// Ended reports whether the engine has.
func (i *GuestProcesses) Ended() bool {
	select {
	case <-i.exited:
		return true
	default:
		return false
	}
}

// disconnectGrace is how long it takes at most to know why a connection to the inside is broken.
const disconnectGrace = time.Second

// Lost is Engine.Lost: a connection breaks a moment before the engine has ended.
func (i *GuestProcesses) Lost(err error) bool {
	switch kind := atoll.KindOf(err); {
	case i.Ended():
		return true
	case kind != atoll.ErrUnavailable && kind != atoll.ErrInternal && kind != atoll.ErrStopped:
		return false // an answer, or none within the time that there was
	}
	select {
	case <-i.exited:
		return true
	case <-time.After(disconnectGrace):
		return false
	}
}

// causedByEnd reports whether err, of a call to the inside, is due to the end of the engine.
func (i *GuestProcesses) causedByEnd(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && i.Lost(err)
}

// Explain is what err, of a call to the inside, means: ErrStopped if the engine has ended.
func (i *GuestProcesses) Explain(ctx context.Context, op string, err error) error {
	if i.causedByEnd(ctx, err) {
		return atoll.E(op, i.sandbox.ID(), atoll.ErrStopped, nil)
	}
	return err
}

// Awake is the error of what the inside has to answer, and cannot while it is paused or
// stands still.
func (i *GuestProcesses) Awake(op string) error {
	if i.sandbox.engine.Frozen() {
		return atoll.Errorf(op, i.sandbox.ID(), atoll.ErrConflict, "the sandbox is paused: resume it first")
	}
	if s, ok := i.sandbox.engine.(Staller); ok {
		if why := s.Stalled(); why != "" {
			return atoll.Errorf(op, i.sandbox.ID(), atoll.ErrExhausted, "%s", why)
		}
	}
	return nil
}

// Remember notes what is left of the main process, for when the engine has ended.
func (i *GuestProcesses) Remember(main *process.Table) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.main = main
}

// Left is what Remember has noted, nil before.
func (i *GuestProcesses) Left() *process.Table {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.main
}

// WrapProcess is p, which is a process inside, as long as the engine runs and when it has ended.
func (i *GuestProcesses) WrapProcess(p atoll.Process) atoll.Process {
	return &guestProcess{atoll.ProcessLayer{Process: p}, i}
}

// WrapList is the list of processes, for which the inside was asked: when the engine has
// ended it is what is left.
func (i *GuestProcesses) WrapList(ctx context.Context, list []atoll.ProcessStatus, err error) ([]atoll.ProcessStatus, error) {
	if !i.causedByEnd(ctx, err) {
		return list, err
	}
	if left := i.Left(); left != nil {
		return left.List(), nil
	}
	return nil, nil // nobody knows any more
}

// An inmate is a process that ends with the engine.
type guestProcess struct {
	atoll.ProcessLayer
	guest *GuestProcesses
}

// endedMain is what is left of it when the engine has ended: nil, but for the main process.
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
		return nil // it has done its work: with the main process the sandbox goes
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

// Attach implements atoll.Process: whoever reads what the main process has printed reads on
// from what was kept of it.
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

// A counter counts what is written to it.
type counter struct {
	io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}
