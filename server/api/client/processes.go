package client

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Processes implements atoll.ProcessLister.
func (s *sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	var reply wire.ProcessesReply
	err := s.callSandbox(ctx, call{op: "processes", path: "/processes", reply: &reply, replyLimit: maxListReply})
	return reply.Processes, err
}

// Process implements atoll.Sandbox.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	if id == "" {
		return nil, atoll.Errorf("process", s.id, atoll.ErrNotExist, "no process id given")
	}
	var reply wire.IDReply
	if err := s.callSandbox(ctx, call{op: "process", path: "/processes/" + wire.PathSegment(id), reply: &reply, replyLimit: maxSpecReply}); err != nil {
		return nil, err
	}
	return &process{sb: s, id: reply.ID}, nil
}

// A process is the client's handle for a process.
type process struct {
	sb *sandbox
	id string

	// The streams of Exec: both are nil for a command without streams, and resumable is set if the
	// client may reconnect.
	stream    *processStream
	resumable *resumableStream
}

// ID implements atoll.Process.
func (p *process) ID() string { return p.id }

// callProcess makes a request below the path of the process.
func (p *process) callProcess(ctx context.Context, q call) error {
	q.path = "/processes/" + wire.PathSegment(p.id) + q.path
	return p.sb.callSandbox(ctx, q)
}

// Wait implements atoll.Process.
func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	switch {
	case p.resumable != nil:
		select {
		case <-p.resumable.done:
		default:
			select {
			case <-p.resumable.done:
			case <-ctx.Done():
				return atoll.Exit{}, ctx.Err()
			}
		}
		return p.resumable.exit, p.resumable.err
	case p.stream != nil:
		return p.waitStream(ctx)
	}
	return p.fetchExit(ctx)
}

// fetchExit requests the exit from the server and blocks until the process ends.
func (p *process) fetchExit(ctx context.Context) (atoll.Exit, error) {
	var exit atoll.Exit
	err := p.callProcess(ctx, call{op: "wait", path: "/wait", reply: &exit})
	return exit, err
}

// waitStream waits for the end of the stream connection that started the process.
func (p *process) waitStream(ctx context.Context) (atoll.Exit, error) {
	select {
	case <-p.stream.done:
	default:
		select {
		case <-p.stream.done:
		case <-ctx.Done():
			return atoll.Exit{}, ctx.Err()
		}
	}
	return p.streamExit(p.stream)
}

// streamExit returns the exit that the ended stream connection received.
func (p *process) streamExit(run *processStream) (atoll.Exit, error) {
	last, err := run.last, run.err
	switch {
	case err != nil && p.sb.c.ctx.Err() != nil:
		return atoll.Exit{}, atoll.E("wait", p.sb.id, atoll.ErrUnavailable, errClientClosed)
	case err != nil:
		return atoll.Exit{}, atoll.Errorf("wait", p.sb.id, atoll.ErrUnavailable,
			"%w, process %s may still run", p.sb.c.describeLoss(err), p.id)
	case last.Exit != nil:
		return *last.Exit, nil
	case last.Error != nil:
		return atoll.Exit{}, last.Error.ToError("wait", p.sb.id)
	}
	return atoll.Exit{}, atoll.Errorf("wait", p.sb.id, atoll.ErrInternal, "the server ended with a message %q", last.Type)
}

// Signal implements atoll.Process.
func (p *process) Signal(ctx context.Context, sig atoll.Signal) error {
	if sig < 1 || sig > 64 {
		return atoll.Errorf("signal", p.sb.id, atoll.ErrInvalid, "signal %d: must be within 1..64", int(sig))
	}
	return p.callProcess(ctx, call{op: "signal", method: "POST", path: "/signal", body: wire.SignalRequest{Signal: sig}})
}

// Resize implements atoll.Resizer.
func (p *process) Resize(ctx context.Context, size atoll.Size) error {
	return p.callProcess(ctx, call{op: "resize", method: "POST", path: "/resize", body: size, idempotent: true})
}

// fetchStatus requests the status of the process.
func (p *process) fetchStatus(ctx context.Context) (atoll.ProcessStatus, error) {
	var st atoll.ProcessStatus
	err := p.callProcess(ctx, call{op: "process", reply: &st, replyLimit: maxSpecReply})
	return st, err
}

// attachCall returns the request that opens a stream connection to the process.
func (p *process) attachCall() call {
	return call{op: "attach", id: p.sb.id, path: p.sb.path + "/processes/" + wire.PathSegment(p.id) + "/attach"}
}

// Attach implements atoll.Process.
func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	if p.sb.c.opts.Patience > 0 {
		return p.attachResuming(ctx, a)
	}
	return p.attachOnce(ctx, a)
}

// attachOnce is Attach over one stream connection.
func (p *process) attachOnce(ctx context.Context, a *atoll.Attachment) error {
	first := wire.Message{Type: wire.MsgAttach, Name: a.Name, Stdin: a.Stdin != nil, NoFollow: a.NoFollow}
	if a.StdoutFrom != 0 || a.StderrFrom != 0 {
		first.From = &wire.Offsets{Stdout: a.StdoutFrom, Stderr: a.StderrFrom}
	}
	q := p.attachCall()
	run, _, err := p.sb.c.openStream(ctx, q, first, a.Stdin, a.Stdout, a.Stderr, a.Gap)
	if err != nil {
		return err
	}
	return p.waitAttached(ctx, run)
}

// waitAttached waits for the end of an attachment's stream connection.
func (p *process) waitAttached(ctx context.Context, run *processStream) error {
	const op = "attach"
	stop := context.AfterFunc(ctx, func() { run.leaveStream(context.Cause(ctx)) })
	defer stop()
	<-run.done
	failed := run.writerError()
	switch {
	case ctx.Err() != nil && run.last.Type == "":
		return ctx.Err()
	case failed != nil:
		return failed
	case run.err != nil:
		return p.sb.c.wrapConnError(ctx, op, p.sb.id, run.err)
	case run.last.Error != nil:
		return run.last.Error.ToError(op, p.sb.id)
	}
	return nil
}

// attachResuming is Attach over successive stream connections.
func (p *process) attachResuming(ctx context.Context, a *atoll.Attachment) error {
	named := *a
	if named.Name == "" {
		named.Name = rand.Text()
	}
	t := newResumableStream(p, a.Stdin, a.Stdout, a.Stderr)
	t.attached = &named
	if t.input != nil {
		defer t.input.closeInput()
	}
	if a.Stdin != nil || a.StdoutFrom < 0 || a.StderrFrom < 0 { // to resume, the client needs absolute offsets
		st, err := p.fetchStatus(ctx)
		switch {
		case err != nil:
			return err
		case st.Started.IsZero(): // the provider has no status, so the streams cannot resume
			return p.attachOnce(ctx, a)
		}
		t.inputBase = st.Stdin
		if named.StdoutFrom == atoll.FromNow {
			named.StdoutFrom = st.Stdout.Written
		}
		if named.StderrFrom == atoll.FromNow {
			named.StderrFrom = st.Stderr.Written
		}
	}
	if !t.isJoint() {
		t.stdout.startAt(named.StdoutFrom)
		t.stderr.startAt(named.StderrFrom)
	}
	run, err := t.openFirst(ctx)
	for err == nil {
		opened := time.Now()
		err = p.waitAttached(ctx, run)
		lost := t.connectionLoss(run)
		if err == nil || lost == nil || ctx.Err() != nil || run.writerError() != nil {
			return err
		}
		run, err = t.openNext(ctx, opened, lost)
	}
	return err
}

var (
	_ atoll.Process       = (*process)(nil)
	_ atoll.Resizer       = (*process)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
