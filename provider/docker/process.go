package docker

import (
	"context"
	"errors"
	"time"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// A process is a process that the guest or the plainRun serves. When the sandbox has ended, the
// main process comes from the engine's log.
type process struct {
	guestproc.Process
	s *sandbox
}

// wrapProcess returns p with explained errors.
func (s *sandbox) wrapProcess(p atoll.Process) atoll.Process {
	return &process{guestproc.Process{ProcessLayer: atoll.ProcessLayer{Process: p}, ExplainError: s.explainError, Ended: s.endedMain}, s}
}

// Signal implements atoll.Process.
func (p *process) Signal(ctx context.Context, sig atoll.Signal) error {
	err := p.s.p.withPauseCheck(ctx, "signal", p.s.id, func(ctx context.Context) error { return p.ProcessLayer.Signal(ctx, sig) })
	if errors.Is(err, errPaused) {
		return atoll.Errorf("signal", p.ID(), atoll.ErrConflict, "the sandbox is paused: resume it first")
	}
	return p.s.explainError(ctx, "signal", err)
}

// endedMain returns the main process of an ended sandbox: how it ended, and its output in the
// engine's log. Kinds: ErrNotExist (there was none, or it runs).
func (s *sandbox) endedMain(ctx context.Context) (atoll.Process, atoll.ProcessStatus, error) {
	r, err := s.p.findRecord(ctx, "process", s.id)
	if err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	if err := guestproc.MainEnded(&r.Status); err != nil {
		return nil, atoll.ProcessStatus{}, err
	}
	stdout, stderr, err := s.p.readOutput(ctx, r)
	if err != nil {
		return nil, atoll.ProcessStatus{}, s.p.wrapError(ctx, "process", s.id, err)
	}
	return guestproc.EndedMain(&r.Status, stdout, stderr)
}

// readOutput reads the main process's output of the last run from the engine's log.
func (p *Provider) readOutput(ctx context.Context, r *record) (stdout, stderr *guest.Tail, err error) {
	if r.plain {
		return p.readPlainOutput(ctx, r)
	}
	// The first lines may be older than the recorded start.
	since := r.Started.Add(-time.Minute).Format(time.RFC3339Nano)
	return p.readLogs(ctx, r.container, client.ContainerLogsOptions{Since: since})
}
