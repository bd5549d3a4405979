//go:build linux

package hull

import (
	"context"
	"io"

	"github.com/seed46cd37a8/atoll"
)

// An inmate is a process of the guest's, which ends with the machine.
type inmate struct {
	atoll.ProcessLayer
	e *engine
}

// main is what is left of it when the machine has gone: nil, but for the main process.
func (i *inmate) main() atoll.Process {
	left := i.e.left()
	if left == nil || i.ID() != atoll.MainProcess {
		return nil
	}
	p, err := left.Get(i.ID())
	if err != nil {
		return nil
	}
	return p
}

// outlived reports whether err, of a call about the process, is due to the end of the
// machine.
func (i *inmate) outlived(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && i.e.Lost(err)
}

// Wait implements atoll.Process.
func (i *inmate) Wait(ctx context.Context) (atoll.Exit, error) {
	exit, err := i.ProcessLayer.Wait(ctx)
	if !i.outlived(ctx, err) {
		return exit, err
	}
	if p := i.main(); p != nil {
		return p.Wait(ctx)
	}
	reason := "killed with its sandbox"
	if !i.e.box.Ending() {
		reason = i.e.box.Fate()
	}
	return atoll.Exit{Code: 137, Signal: atoll.SIGKILL, Reason: reason}, nil
}

// Signal implements atoll.Process.
func (i *inmate) Signal(ctx context.Context, sig atoll.Signal) error {
	if err := i.e.awake("signal"); err != nil {
		return err
	}
	err := i.ProcessLayer.Signal(ctx, sig)
	switch {
	case !i.outlived(ctx, err):
		return err
	case sig == atoll.SIGKILL:
		return nil // it has done its work: with the main process the sandbox goes
	}
	return atoll.E("signal", i.ID(), atoll.ErrStopped, nil)
}

// Resize implements atoll.Resizer.
func (i *inmate) Resize(ctx context.Context, size atoll.Size) error {
	if err := i.e.awake("resize"); err != nil {
		return err
	}
	return i.e.explain(ctx, "resize", i.ProcessLayer.Resize(ctx, size))
}

// Attach implements atoll.Process: whoever reads what the main process has printed reads on
// from what was kept of it.
func (i *inmate) Attach(ctx context.Context, a *atoll.Attachment) error {
	counted := *a
	out, errs := counter{Writer: a.Stdout}, counter{Writer: a.Stderr}
	if a.Stdout != nil {
		counted.Stdout = &out
	}
	if a.Stderr != nil {
		counted.Stderr = &errs
	}
	err := i.ProcessLayer.Attach(ctx, &counted)
	if !i.outlived(ctx, err) {
		return err
	}
	p := i.main()
	if p == nil || a.StdoutFrom < 0 || a.StderrFrom < 0 {
		return atoll.E("attach", i.ID(), atoll.ErrStopped, nil)
	}
	rest := *a
	rest.StdoutFrom, rest.StderrFrom = a.StdoutFrom+out.n, a.StderrFrom+errs.n
	return p.Attach(ctx, &rest)
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
