package docker

import (
	"bufio"
	"context"
	"io"
	"net"
	"time"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	table "github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// mainCommand is the main process of a sandbox as a command.
func mainCommand(spec *atoll.Spec) *atoll.Command {
	return &atoll.Command{Args: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin}
}

// attach connects to the main process of a container that is not started yet, so
// that nothing it prints is missed, and it is held back by whoever reads that.
func (l *life) attach(ctx context.Context) error {
	hijacked, err := l.p.engine.ContainerAttach(ctx, l.r.container, client.ContainerAttachOptions{
		Stream: true, Stdin: l.r.Spec.OpenStdin || l.r.Spec.TTY != nil, Stdout: true, Stderr: true,
	})
	if err != nil {
		return err
	}
	return l.enter(ctx, newStream(hijacked.HijackedResponse, l.r.Spec.TTY != nil))
}

// follow reads what the main process has printed from the engine's log, and then
// what it prints, line by line.
func (l *life) follow(ctx context.Context) error {
	logs, err := l.p.engine.ContainerLogs(l.ctx, l.r.container, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Follow: true, Since: l.r.printedSince(),
	})
	if err != nil {
		return err
	}
	tty := l.r.Spec.TTY != nil
	conn := &logConn{logs: logs}
	if tty { // what is typed goes there, and what is printed comes from the log
		typed, err := l.p.engine.ContainerAttach(ctx, l.r.container, client.ContainerAttachOptions{Stream: true, Stdin: true})
		if err != nil {
			logs.Close()
			return err
		}
		conn.Conn = typed.Conn
	}
	return l.enter(ctx, newStream(client.HijackedResponse{Conn: conn, Reader: bufio.NewReader(logs)}, tty))
}

// plainLogs reads what the main process has printed in its last life.
func (p *Provider) plainLogs(ctx context.Context, r *record) (stdout, stderr *guest.Tail, err error) {
	logs, err := p.engine.ContainerLogs(ctx, r.container, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Since: r.printedSince()})
	if err != nil {
		return nil, nil, err
	}
	defer logs.Close()
	stdout, stderr = &guest.Tail{}, &guest.Tail{}
	s := newStream(client.HijackedResponse{Reader: bufio.NewReader(logs)}, r.Spec.TTY != nil)
	return stdout, stderr, s.copy(stdout, stderr)
}

// printedSince is from when on the log is that of the life of now: the main process
// may have printed before the engine notes that it runs.
func (r *record) printedSince() string { return r.Started.Add(-startTime).Format(time.RFC3339Nano) }

// startTime is how long the engine may take to note that.
const startTime = time.Second

// enter makes the main process one of the life's.
func (l *life) enter(ctx context.Context, s *stream) error {
	var hold time.Duration
	if l.r.Spec.AutoRemove {
		hold = atoll.AutoRemoveLinger
	}
	_, err := l.table.StartHeld(ctx, atoll.MainProcess, mainCommand(&l.r.Spec), hold, func(stdio table.Stdio) (table.Handle, error) {
		j := &job{l: l, stream: s, gone: make(chan struct{})}
		j.pump(l.r.Spec.TTY != nil, stdio)
		return j, nil
	})
	if err != nil {
		s.close()
	}
	return err
}

// A logConn is a log for reading, and what is typed for writing: nothing, if there
// is no Conn.
type logConn struct {
	net.Conn
	logs io.Closer
}

func (c *logConn) Write(b []byte) (int, error) {
	if c.Conn == nil {
		return 0, io.ErrClosedPipe
	}
	return c.Conn.Write(b)
}

func (c *logConn) Close() error {
	if c.Conn != nil {
		_ = c.Conn.Close()
	}
	return c.logs.Close()
}
