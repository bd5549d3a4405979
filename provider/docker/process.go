package docker

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	ended "github.com/seed46cd37a8/atoll/internal/process"
)

// A process is one that the guest knows, until it is gone with it.
type process struct {
	atoll.ProcessLayer
	s *sandbox
}

// Wait implements atoll.Process.
func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	exit, err := p.ProcessLayer.Wait(ctx)
	if err = p.s.explain(ctx, "wait", err); atoll.KindOf(err) == atoll.ErrStopped && p.ID() == atoll.MainProcess {
		if main, _, endErr := p.s.endedMain(ctx); endErr == nil {
			return main.Wait(ctx)
		}
	}
	return exit, err
}

// Signal implements atoll.Process.
func (p *process) Signal(ctx context.Context, sig atoll.Signal) error {
	err := p.s.p.unpaused(ctx, "signal", p.s.id, func(ctx context.Context) error { return p.ProcessLayer.Signal(ctx, sig) })
	if errors.Is(err, errPaused) {
		return atoll.Errorf("signal", p.ID(), atoll.ErrConflict, "the sandbox is paused: resume it first")
	}
	return p.s.explain(ctx, "signal", err)
}

// Attach implements atoll.Process.
func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	if p.ID() != atoll.MainProcess {
		return p.s.explain(ctx, "attach", p.ProcessLayer.Attach(ctx, a))
	}
	with := *a
	stdout, stderr := &counter{w: a.Stdout}, &counter{w: a.Stderr}
	if a.Stdout != nil {
		with.Stdout = stdout
	}
	if a.Stderr != nil {
		with.Stderr = stderr
	}
	err := p.s.explain(ctx, "attach", p.ProcessLayer.Attach(ctx, &with))
	if atoll.KindOf(err) != atoll.ErrStopped || a.StdoutFrom < 0 || a.StderrFrom < 0 {
		return err
	}
	main, _, endErr := p.s.endedMain(ctx)
	if endErr != nil {
		return err
	}
	rest := *a // from where its guest broke off
	rest.StdoutFrom, rest.StderrFrom = a.StdoutFrom+stdout.n, a.StderrFrom+stderr.n
	endErr = main.Attach(ctx, &rest)
	if atoll.KindOf(endErr) == atoll.ErrInvalid {
		return err // the guest was killed before all of it was in the engine's log
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
func (p *process) Resize(ctx context.Context, size atoll.Size) error {
	return p.s.explain(ctx, "resize", p.ProcessLayer.Resize(ctx, size))
}

// endedMain is the main process of a sandbox that has come to its end, as the
// engine remembers it: how it ended, and what it has printed since it was
// started. Kinds: ErrNotExist (there was none, or it runs).
func (s *sandbox) endedMain(ctx context.Context) (atoll.Process, atoll.ProcessStatus, error) {
	r, err := s.p.inspect(ctx, "process", s.id)
	if err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	if r.Exit == nil {
		return nil, atoll.ProcessStatus{}, atoll.Errorf("process", s.id, atoll.ErrNotExist, "it has no main process that has ended")
	}
	stdout, stderr, err := s.p.printed(ctx, r)
	if err != nil {
		return nil, atoll.ProcessStatus{}, s.p.failed(ctx, "process", s.id, err)
	}
	exit := *r.Exit
	exit.Duration = atoll.Duration(r.Stopped.Sub(r.Started))
	st := atoll.ProcessStatus{
		ID: atoll.MainProcess, Args: r.Spec.Cmd, User: r.Spec.User, TTY: r.Spec.TTY != nil, Started: r.Started, Exit: &exit,
		Stdout: stdout.status(), Stderr: stderr.status(),
	}
	table := ended.Ended(st, stdout.kept(), stderr.kept())
	p, err := table.Get(atoll.MainProcess)
	return p, st, err
}

// printed reads what the main process of a container has printed, since it was
// started, from the engine's log.
func (p *Provider) printed(ctx context.Context, r *record) (stdout, stderr *tail, err error) {
	if r.plain {
		return p.plainLogs(ctx, r)
	}
	// The engine notes when it has started, and the first lines may be older.
	since := r.Started.Add(-time.Minute).Format(time.RFC3339Nano)
	return p.logs(ctx, r.container, client.ContainerLogsOptions{Since: since})
}
