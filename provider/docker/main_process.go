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

// mainCommand returns the main process of a sandbox as a command.
func mainCommand(spec *atoll.Spec) *atoll.Command {
	return &atoll.Command{Args: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin}
}

// attachMain connects to the main process of a container before it starts, so that no output is
// lost. A slow reader of the output blocks the process.
func (run *plainRun) attachMain(ctx context.Context) error {
	hijacked, err := run.p.engine.ContainerAttach(ctx, run.r.container, client.ContainerAttachOptions{
		Stream: true, Stdin: run.r.Spec.OpenStdin || run.r.Spec.TTY != nil, Stdout: true, Stderr: true,
	})
	if err != nil {
		return err
	}
	return run.addMain(ctx, newStream(hijacked.HijackedResponse, run.r.Spec.TTY != nil))
}

// followMain connects to the main process of a running container. It reads the output so far,
// and then new output line by line, from the engine's log.
func (run *plainRun) followMain(ctx context.Context) error {
	logs, err := run.p.engine.ContainerLogs(run.ctx, run.r.container, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Follow: true, Since: run.r.logStart(),
	})
	if err != nil {
		return err
	}
	tty := run.r.Spec.TTY != nil
	conn := &logConn{logs: logs}
	if tty { // input goes to the attached terminal, output comes from the log
		typed, err := run.p.engine.ContainerAttach(ctx, run.r.container, client.ContainerAttachOptions{Stream: true, Stdin: true})
		if err != nil {
			logs.Close()
			return err
		}
		conn.Conn = typed.Conn
	}
	return run.addMain(ctx, newStream(client.HijackedResponse{Conn: conn, Reader: bufio.NewReader(logs)}, tty))
}

// readPlainOutput reads the main process's output of the last run.
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

// logStart returns the time from which the log belongs to the last run, for the engine's API:
// the main process may have printed before the engine recorded its start.
func (r *record) logStart() string { return r.Started.Add(-startNotice).Format(time.RFC3339Nano) }

// startNotice bounds how long the engine takes to record a start.
const startNotice = time.Second

// addMain adds the main process to the table of the run.
func (run *plainRun) addMain(ctx context.Context, s *stream) error {
	var hold time.Duration
	if run.r.Spec.AutoRemove {
		hold = atoll.AutoRemoveDelay
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

// A logConn reads from a log, and writes to Conn if that is not nil.
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
