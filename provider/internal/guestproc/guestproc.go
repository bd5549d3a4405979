// Package guestproc keeps a process's exit and output available after its guest has ended.
package guestproc

import (
	"context"
	"io"

	"github.com/seed46cd37a8/atoll"
)

// A Process is one that its guest knows, until it is gone with it.
type Process struct {
	atoll.ProcessLayer
	// Explain turns the error of a guest that went away into what it means: ErrStopped,
	// if the sandbox has come to its end. Other errors, and nil, it gives back.
	Explain func(ctx context.Context, op string, err error) error
	// Ended is the main process of a sandbox that has come to its end. Kinds:
	// ErrNotExist (there was none, or it runs).
	Ended func(ctx context.Context) (atoll.Process, atoll.ProcessStatus, error)
}

// Wait implements atoll.Process.
func (p *Process) Wait(ctx context.Context) (atoll.Exit, error) {
	exit, err := p.ProcessLayer.Wait(ctx)
	if err = p.Explain(ctx, "wait", err); atoll.KindOf(err) == atoll.ErrStopped && p.ID() == atoll.MainProcess {
		if main, _, endErr := p.Ended(ctx); endErr == nil {
			return main.Wait(ctx)
		}
	}
	return exit, err
}

// Signal implements atoll.Process.
func (p *Process) Signal(ctx context.Context, sig atoll.Signal) error {
	return p.Explain(ctx, "signal", p.ProcessLayer.Signal(ctx, sig))
}

// Attach implements atoll.Process. What the guest could not deliver any more comes
// from whoever remembers it, from where the guest broke off.
func (p *Process) Attach(ctx context.Context, a *atoll.Attachment) error {
	if p.ID() != atoll.MainProcess {
		return p.Explain(ctx, "attach", p.ProcessLayer.Attach(ctx, a))
	}
	with := *a
	stdout, stderr := &counter{w: a.Stdout}, &counter{w: a.Stderr}
	if a.Stdout != nil {
		with.Stdout = stdout
	}
	if a.Stderr != nil {
		with.Stderr = stderr
	}
	err := p.Explain(ctx, "attach", p.ProcessLayer.Attach(ctx, &with))
	if atoll.KindOf(err) != atoll.ErrStopped || a.StdoutFrom < 0 || a.StderrFrom < 0 {
		return err
	}
	main, _, endErr := p.Ended(ctx)
	if endErr != nil {
		return err
	}
	rest := *a // from where its guest broke off
	rest.StdoutFrom, rest.StderrFrom = a.StdoutFrom+stdout.n, a.StderrFrom+stderr.n
	endErr = main.Attach(ctx, &rest)
	if atoll.KindOf(endErr) == atoll.ErrInvalid {
		return err // the guest was killed before all of it was where it is remembered
	}
	return endErr
}

// A counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// Resize implements atoll.Resizer.
func (p *Process) Resize(ctx context.Context, size atoll.Size) error {
	return p.Explain(ctx, "resize", atoll.Resize(ctx, p.Process, size))
}

var (
	_ atoll.Process = (*Process)(nil)
	_ atoll.Resizer = (*Process)(nil)
)
