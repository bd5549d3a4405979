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

// attachMain connects to the main process of a container that is not started yet, so
// that nothing it prints is missed, and it is held back by whoever reads that.
func (run *plainRun) attachMain(ctx context.Context) error {
	hijacked, err := run.p.engine.ContainerAttach(ctx, run.r.container, client.ContainerAttachOptions{
		Stream: true, Stdin: run.r.Spec.OpenStdin || run.r.Spec.TTY != nil, Stdout: true, Stderr: true,
	})
	if err != nil {
		return err
	}
	return run.addMain(ctx, newStream(hijacked.HijackedResponse, run.r.Spec.TTY != nil))
}

// followMain reads what the main process has printed from the engine's log, and then
// what it prints, line by line.
func (run *plainRun) followMain(ctx context.Context) error {
	logs, err := run.p.engine.ContainerLogs(run.ctx, run.r.container, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Follow: true, Since: run.r.logStart(),
	})
	if err != nil {
		return err
	}
	tty := run.r.Spec.TTY != nil
	conn := &logConn{logs: logs}
	if tty { // what is typed goes there, and what is printed comes from the log
		typed, err := run.p.engine.ContainerAttach(ctx, run.r.container, client.ContainerAttachOptions{Stream: true, Stdin: true})
		if err != nil {
			logs.Close()
			return err
		}
		conn.Conn = typed.Conn
	}
	return run.addMain(ctx, newStream(client.HijackedResponse{Conn: conn, Reader: bufio.NewReader(logs)}, tty))
}

// readPlainOutput reads what the main process has printed in its last life.
func (p *Provider) readPlainOutput(ctx context.Context, r *record) (stdout, stderr *guest.Tail, err error) {
	logs, err := p.engine.ContainerLogs(ctx, r.container, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Since: r.logStart()})
	if err != nil {
		return nil, nil, err
	}
	defer logs.Close()
	stdout, stderr = &guest.Tail{}, &guest.Tail{}
	s := newStream(client.HijackedResponse{Reader: bufio.NewReader(logs)}, r.Spec.TTY != nil)
	return stdout, stderr, s.copyOutput(stdout, stderr)
}

// logStart is from when on the log is that of the life of now: the main process
// may have printed before the engine notes that it runs.
func (r *record) logStart() string { return r.Started.Add(-startNotice).Format(time.RFC3339Nano) }

// startNotice is how long the engine may take to note that.
const startNotice = time.Second

// addMain makes the main process one of the life's.
func (run *plainRun) addMain(ctx context.Context, s *stream) error {
	var hold time.Duration
	if run.r.Spec.AutoRemove {
		hold = atoll.AutoRemoveLinger
	}
	_, err := run.table.StartHeld(ctx, atoll.MainProcess, mainCommand(&run.r.Spec), hold, func(stdio table.Stdio) (table.Handle, error) {
		j := &job{run: run, stream: s, outputEnded: make(chan struct{})}
		j.copyStreams(run.r.Spec.TTY != nil, stdio)
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
