package trace

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func (t *tracer) sandbox(sb atoll.Sandbox) atoll.Sandbox {
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, t}
}

type sandbox struct {
	atoll.SandboxLayer
	t *tracer
}

func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	ctx, c := s.t.begin(ctx, "status", s.ID(), "")
	st, err := s.Sandbox.Status(ctx)
	c.end(ctx, err, slog.String("state", string(st.State)))
	return st, err
}

func (s *sandbox) Start(ctx context.Context) error {
	ctx, c := s.t.event(ctx, "start", s.ID())
	err := s.Sandbox.Start(ctx)
	c.end(ctx, err)
	return err
}

func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	ctx, c := s.t.event(ctx, "stop", s.ID())
	err := s.Sandbox.Stop(ctx, grace)
	c.end(ctx, err, slog.Duration("grace", grace))
	return err
}

func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	ctx, c := s.t.event(ctx, "remove", s.ID())
	err := s.Sandbox.Remove(ctx, opts...)
	c.end(ctx, err, slog.Bool("volumes", atoll.RemoveOpts(opts...).Volumes))
	return err
}

func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	ctx, c := s.t.begin(ctx, "exec", s.ID(), "")
	p, err := s.Sandbox.Exec(ctx, cmd)
	if err != nil {
		c.end(ctx, err, slog.Any("args", cmd.Args))
		return nil, err
	}
	c.id("process", p.ID())
	c.end(ctx, nil, slog.Any("args", cmd.Args), slog.Bool("tty", cmd.TTY != nil))
	return s.process(p), nil
}

func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	ctx, c := s.t.begin(ctx, "process", s.ID(), id)
	p, err := s.Sandbox.Process(ctx, id)
	c.end(ctx, err)
	if err != nil {
		return nil, err
	}
	return s.process(p), nil
}

func (s *sandbox) Files() atoll.FS { return &files{FS: atoll.Files(s.Sandbox), sb: s} }

// Dial tells of the dialling only.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	ctx, c := s.t.begin(ctx, "dial", s.ID(), "")
	conn, err := atoll.Dial(ctx, s.Sandbox, port)
	c.end(ctx, err, slog.Int("port", port))
	return conn, err
}

func (s *sandbox) Pause(ctx context.Context) error {
	ctx, c := s.t.event(ctx, "pause", s.ID())
	err := atoll.Pause(ctx, s.Sandbox)
	c.end(ctx, err)
	return err
}

func (s *sandbox) Resume(ctx context.Context) error {
	ctx, c := s.t.event(ctx, "resume", s.ID())
	err := atoll.Resume(ctx, s.Sandbox)
	c.end(ctx, err)
	return err
}

func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	ctx, c := s.t.event(ctx, "extend", s.ID())
	err := atoll.Extend(ctx, s.Sandbox, ttl)
	c.end(ctx, err, slog.String("ttl", ttl.String()))
	return err
}

func (s *sandbox) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	ctx, c := s.t.event(ctx, "snapshot", s.ID())
	snap, err := atoll.TakeSnapshot(ctx, s.Sandbox)
	c.id("snapshot", snap.ID)
	c.end(ctx, err, slog.Int64("size", int64(snap.Size)))
	return snap, err
}

func (s *sandbox) Usage(ctx context.Context) (atoll.Usage, error) {
	ctx, c := s.t.begin(ctx, "usage", s.ID(), "")
	u, err := atoll.UsageOf(ctx, s.Sandbox)
	c.end(ctx, err)
	return u, err
}

func (s *sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	ctx, c := s.t.begin(ctx, "processes", s.ID(), "")
	all, err := atoll.Processes(ctx, s.Sandbox)
	c.end(ctx, err, slog.Int("n", len(all)))
	return all, err
}

func (s *sandbox) process(p atoll.Process) atoll.Process {
	return &process{atoll.ProcessLayer{Process: p}, s}
}

type process struct {
	atoll.ProcessLayer
	sb *sandbox
}

func (p *process) begin(ctx context.Context, op string) (context.Context, *call) {
	return p.sb.t.begin(ctx, op, p.sb.ID(), p.ID())
}

func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	ctx, c := p.begin(ctx, "wait")
	exit, err := p.Process.Wait(ctx)
	c.end(ctx, err, slog.Int("code", exit.Code))
	return exit, err
}

func (p *process) Signal(ctx context.Context, sig atoll.Signal) error {
	ctx, c := p.begin(ctx, "signal")
	err := p.Process.Signal(ctx, sig)
	c.end(ctx, err, slog.String("signal", sig.String()))
	return err
}

func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	ctx, c := p.begin(ctx, "attach")
	err := p.Process.Attach(ctx, a)
	c.end(ctx, err)
	return err
}

func (p *process) Resize(ctx context.Context, size atoll.Size) error {
	ctx, c := p.begin(ctx, "resize")
	err := atoll.Resize(ctx, p.Process, size)
	c.end(ctx, err, slog.Int("rows", int(size.Rows)), slog.Int("cols", int(size.Cols)))
	return err
}

var (
	_ atoll.Filer         = (*sandbox)(nil)
	_ atoll.Dialer        = (*sandbox)(nil)
	_ atoll.Pauser        = (*sandbox)(nil)
	_ atoll.Snapshotter   = (*sandbox)(nil)
	_ atoll.Meter         = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
	_ atoll.Resizer       = (*process)(nil)
)
