package docker

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/guest"
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
	logs, err := s.p.engine.ContainerLogs(ctx, r.container, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Since: r.Started.Format(time.RFC3339Nano),
	})
	if err != nil {
		return nil, atoll.ProcessStatus{}, s.p.failed(ctx, "process", s.id, err)
	}
	defer logs.Close()
	stdout, stderr, err := readLogs(logs)
	if err != nil {
		return nil, atoll.ProcessStatus{}, s.p.failed(ctx, "process", s.id, err)
	}
	stderr.cutReport()
	exit := *r.Exit
	exit.Duration = atoll.Duration(r.Stopped.Sub(r.Started))
	st := atoll.ProcessStatus{
		ID: atoll.MainProcess, Args: r.Spec.Cmd, User: r.Spec.User, TTY: r.Spec.TTY != nil, Started: r.Started, Exit: &exit,
		Stdout: stdout.status(), Stderr: stderr.status(),
	}
	table := ended.Ended(st, stdout.data, stderr.data)
	p, err := table.Get(atoll.MainProcess)
	return p, st, err
}

// A tail is the end of what was written to a stream.
type tail struct {
	written int64
	data    []byte
}

func (t *tail) status() atoll.StreamStatus {
	return atoll.StreamStatus{Written: t.written, Kept: t.written - int64(len(t.data))}
}

// cutReport takes the guest's own last line away, if it is there.
func (t *tail) cutReport() (report []byte) {
	line := bytes.TrimSuffix(t.data, []byte("\n"))
	at := bytes.LastIndexByte(line, '\n') + 1
	report, ok := bytes.CutPrefix(line[at:], []byte(guest.ReportPrefix))
	if ok {
		t.written -= int64(len(t.data) - at)
		t.data = t.data[:at]
	}
	return report
}

// report reads the last line of a container's log, if it is its guest's.
func (p *Provider) report(ctx context.Context, op, id, container string) (r guest.Report, err error) {
	logs, err := p.engine.ContainerLogs(ctx, container, client.ContainerLogsOptions{ShowStderr: true, Tail: "1"})
	if err != nil {
		return r, p.failed(ctx, op, id, err)
	}
	defer logs.Close()
	_, stderr, err := readLogs(logs)
	if err != nil {
		return r, p.failed(ctx, op, id, err)
	}
	if err := json.Unmarshal(stderr.cutReport(), &r); err != nil {
		return guest.Report{}, nil // it has said nothing
	}
	return r, nil
}

// read reads n bytes from r.
func (t *tail) read(r io.Reader, n int) error {
	at := len(t.data)
	t.data = append(t.data, make([]byte, n)...)
	_, err := io.ReadFull(r, t.data[at:])
	t.written += int64(n)
	if over := len(t.data) - atoll.DefaultOutputLimit; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return err
}

// readLogs reads the engine's stream of both outputs to its end.
func readLogs(r io.Reader) (stdout, stderr *tail, err error) {
	stdout, stderr = &tail{}, &tail{}
	for {
		var header [8]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return stdout, stderr, err
		}
		to := stderr
		if header[0] == 1 {
			to = stdout
		}
		if err := to.read(r, int(binary.BigEndian.Uint32(header[4:]))); err != nil {
			return nil, nil, err
		}
	}
}
