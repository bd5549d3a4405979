// Package guestproc serves the exit and output of a process after its guest has ended.
package guestproc

import (
	"context"
	"io"

	"github.com/seed46cd37a8/atoll"
)

// A Process is a process in a guest. After its guest has ended, it serves the recorded exit and output
// of the main process.
type Process struct {
	atoll.ProcessLayer
	// ExplainError replaces the error of a guest that went away: it returns ErrStopped if the
	// sandbox has stopped. It returns nil and other errors unchanged.
	ExplainError func(ctx context.Context, op string, err error) error
	// Ended returns the main process of a sandbox that has stopped. Kinds: ErrNotExist
	// (there was none, or it runs).
	Ended func(ctx context.Context) (atoll.Process, atoll.ProcessStatus, error)
}

// Wait implements atoll.Process.
func (p *Process) Wait(ctx context.Context) (atoll.Exit, error) {
	exit, err := p.ProcessLayer.Wait(ctx)
	if err = p.ExplainError(ctx, "wait", err); atoll.KindOf(err) == atoll.ErrStopped && p.ID() == atoll.MainProcess {
		if main, _, endErr := p.Ended(ctx); endErr == nil {
			return main.Wait(ctx)
		}
	}
	return exit, err
}

// Signal implements atoll.Process.
func (p *Process) Signal(ctx context.Context, sig atoll.Signal) error {
	return p.ExplainError(ctx, "signal", p.ProcessLayer.Signal(ctx, sig))
}

// Attach implements atoll.Process. If the guest goes away, Attach continues with the recorded output,
// from the offset that the guest reached.
func (p *Process) Attach(ctx context.Context, a *atoll.Attachment) error {
	if p.ID() != atoll.MainProcess {
		return p.ExplainError(ctx, "attach", p.ProcessLayer.Attach(ctx, a))
	}
	with := *a
	stdout, stderr := &countingWriter{w: a.Stdout}, &countingWriter{w: a.Stderr}
	if a.Stdout != nil {
		with.Stdout = stdout
	}
	if a.Stderr != nil {
		with.Stderr = stderr
	}
	err := p.ExplainError(ctx, "attach", p.ProcessLayer.Attach(ctx, &with))
	if atoll.KindOf(err) != atoll.ErrStopped || a.StdoutFrom < 0 || a.StderrFrom < 0 {
		return err
	}
	main, _, endErr := p.Ended(ctx)
	if endErr != nil {
		return err
	}
	rest := *a // from the offset that the guest reached
	rest.StdoutFrom, rest.StderrFrom = a.StdoutFrom+stdout.n, a.StderrFrom+stderr.n
	endErr = main.Attach(ctx, &rest)
	if atoll.KindOf(endErr) == atoll.ErrInvalid {
		return err // the guest was killed before it recorded all that it delivered
	}
	return endErr
}

// A countingWriter counts the bytes written to w.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// Resize implements atoll.Resizer.
func (p *Process) Resize(ctx context.Context, size atoll.Size) error {
	return p.ExplainError(ctx, "resize", atoll.Resize(ctx, p.Process, size))
}

var (
	_ atoll.Process = (*Process)(nil)
	_ atoll.Resizer = (*Process)(nil)
)
