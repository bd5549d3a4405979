package sshd

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/terminal"
)

// newCommand returns the program that runs the user's shell, or line with it.
func (s *session) newCommand(kind, line string) program {
	return func(ctx context.Context) (atoll.Exit, error) {
		sb, err := s.conn.findSandbox(ctx)
		if err != nil {
			return atoll.Exit{}, err
		}
		s.conn.log.InfoContext(ctx, "ssh: session", "what", kind, "sandbox", sb.ID(), "terminal", s.tty != nil)
		cmd := &atoll.Command{Env: s.env, TTY: s.tty}
		if cmd.Args, err = s.shellArgs(ctx, sb, kind, line); err != nil {
			return atoll.Exit{}, err
		}
		return s.execCommand(ctx, sb, cmd)
	}
}

// shellArgs returns the shell with its arguments; nil for a shell on a terminal, which
// the provider chooses.
func (s *session) shellArgs(ctx context.Context, sb atoll.Sandbox, kind, line string) ([]string, error) {
	if kind == "shell" && s.tty != nil {
		return nil, nil
	}
	shell, err := s.conn.shellOf(ctx, sb)
	if err != nil {
		return nil, err
	}
	if kind == "shell" {
		return []string{shell}, nil
	}
	return []string{shell, "-c", line}, nil
}

// execCommand runs cmd to its end. If the client goes first, it sends the signals that
// the kernel would send if the process were a child of the connection.
func (s *session) execCommand(ctx context.Context, sb atoll.Sandbox, cmd *atoll.Command) (atoll.Exit, error) {
	var started atomic.Pointer[atoll.Process]
	var gone atomic.Bool // nobody reads the output
	broken := func() {
		gone.Store(true)
		if p := started.Load(); p != nil && s.tty == nil {
			terminal.BreakPipe(ctx, *p)
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.ch, &pipe{ctx: s.reads, w: s.ch, broken: broken}, &pipe{ctx: ctx, w: s.ch.Stderr(), broken: broken}
	if s.tty != nil {
		cmd.Stdin, cmd.Stderr = terminal.Input(s.ch), nil
	}
	p, err := sb.Exec(ctx, cmd)
	if errors.Is(err, atoll.ErrCommandNotFound) {
		return atoll.Exit{}, atoll.Errorf("exec", sb.ID(), atoll.ErrCommandNotFound, "the sandbox has no shell, which SSH needs: use atoll exec to run programs without one")
	}
	if err != nil {
		return atoll.Exit{}, err
	}
	if started.Store(&p); gone.Load() { // perhaps before broken knew the process
		broken()
	}
	var controls sync.WaitGroup
	defer controls.Wait()
	done := make(chan struct{})
	defer close(done)
	controls.Go(func() { s.forwardControls(ctx, p, done) })
	exit, err := p.Wait(ctx)
	if err != nil && ctx.Err() != nil && s.tty != nil {
		s.work.Go(func() { terminal.HangUp(ctx, p) }) // which may outlast the connection; the client gets the reason at once
	}
	return exit, err
}

// controlTimeout bounds the delivery of a signal or a size to a process.
const controlTimeout = 10 * time.Second

// forwardControls passes signals and sizes on until done. It ignores errors: the
// process may just have ended.
func (s *session) forwardControls(ctx context.Context, p atoll.Process, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case size := <-s.sizes:
			bounded, cancel := context.WithTimeout(ctx, controlTimeout)
			_ = atoll.Resize(bounded, p, size)
			cancel()
		case sig := <-s.signals:
			bounded, cancel := context.WithTimeout(ctx, controlTimeout)
			_ = p.Signal(bounded, sig)
			cancel()
		}
	}
}

// A pipe writes to the client until ctx ends, since nobody reads any longer; then it
// calls broken.
type pipe struct {
	ctx    context.Context
	w      io.Writer
	broken func()
	buf    []byte
}

// Write implements io.Writer. It doesn't wait for a client that has stopped reading;
// the bytes it was given may still be sent then.
func (p *pipe) Write(b []byte) (int, error) {
	err := p.ctx.Err()
	if err == nil {
		err = p.writeBytes(b)
	}
	if err != nil {
		p.broken()
		return 0, err
	}
	return len(b), nil
}

func (p *pipe) writeBytes(b []byte) error {
	p.buf = append(p.buf[:0], b...)
	written := make(chan error, 1)
	go func() { // ends with the channel at the latest
		_, err := p.w.Write(p.buf)
		written <- err
	}()
	select {
	case err := <-written:
		return err
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}
