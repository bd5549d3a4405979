package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	table "github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/procgroup"
)

// A job is a process in a sandbox without a guest: a command that the engine executes in the
// container, or the main process.
type job struct {
	run         *plainRun
	exec        string // the engine's id of it; "" for the main process
	user        string
	pid         int    // in the container; 0 if unknown
	mark        string // an environment variable that marks its descendants
	stream      *stream
	outputEnded chan struct{} // closed when its output has ended
}

// startJob lets the engine execute cmd. If ctx ends meanwhile, the start goes on without the
// caller, and the command is killed afterwards.
func (run *plainRun) startJob(ctx context.Context, cmd *atoll.Command, dir string, stdio table.Stdio) (*job, error) {
	type startResult struct {
		j   *job
		err error
	}
	result := make(chan startResult, 1)
	run.work.Go(func() {
		ctx, cancel := run.p.detachContext(ctx)
		defer cancel()
		defer context.AfterFunc(run.ctx, cancel)()
		j, err := run.launchJob(ctx, cmd, dir)
		result <- startResult{j, err}
	})
	select {
	case b := <-result:
		if b.err != nil {
			return nil, b.err
		}
		b.j.copyStreams(cmd.TTY != nil, stdio)
		return b.j, nil
	case <-ctx.Done():
		run.work.Go(func() {
			if b := <-result; b.err == nil {
				b.j.stream.close()
				_ = b.j.Kill()
			}
		})
		return nil, ctx.Err()
	}
}

// launchJob lets the engine execute cmd, and returns when the program runs.
func (run *plainRun) launchJob(ctx context.Context, cmd *atoll.Command, dir string) (*job, error) {
	mark := procgroup.NewMark("", run.id).String()
	args := cmd.Args
	if run.shell {
		args = launcherCommand(cmd, table.Environ(run.r.env, run.commandEnv(cmd)))
	}
	opts := client.ExecCreateOptions{
		Cmd: args, User: cmd.User, WorkingDir: dir, Env: append(run.commandEnv(cmd), mark), TTY: cmd.TTY != nil,
		AttachStdin: cmd.Stdin != nil || cmd.OpenStdin || cmd.TTY != nil, AttachStdout: true, AttachStderr: cmd.TTY == nil,
	}
	made, err := run.p.engine.ExecCreate(ctx, run.r.container, opts)
	if err != nil {
		return nil, run.explainError(ctx, "exec", err)
	}
	hijacked, err := run.p.engine.ExecAttach(ctx, made.ID, client.ExecAttachOptions{TTY: opts.TTY})
	if err != nil {
		return nil, run.explainError(ctx, "exec", err)
	}
	j := &job{run: run, exec: made.ID, user: cmd.User, mark: mark, stream: newStream(hijacked.HijackedResponse, opts.TTY), outputEnded: make(chan struct{})}
	stop := context.AfterFunc(ctx, j.stream.close)
	defer stop()
	if err := j.awaitStart(ctx, cmd); err != nil {
		j.stream.close()
		return nil, err
	}
	return j, nil
}

// awaitStart returns when the program runs and its terminal has its size.
func (j *job) awaitStart(ctx context.Context, cmd *atoll.Command) error {
	if !j.run.shell {
		err := j.awaitExec(ctx, cmd)
		if err == nil && cmd.TTY != nil {
			err = j.Resize(ctx, *cmd.TTY)
		}
		return err
	}
	line, err := j.stream.readLine()
	if err != nil {
		return j.launcherError(ctx, err)
	}
	if code, failed := strings.CutPrefix(line, launchFailed); failed {
		return commandError(j.run.id, cmd.Args[0], code)
	}
	if j.pid, err = strconv.Atoi(line); err != nil { // a message of the engine
		return j.execError(ctx, cmd, line+j.stream.readRest())
	}
	if cmd.TTY == nil {
		return nil
	}
	if err := j.Resize(ctx, *cmd.TTY); err != nil {
		return err
	}
	_, err = io.WriteString(j.stream.conn.Conn, "\n")
	for n := 0; err == nil && line != launchReady; n++ { // skips the terminal's echo
		if line, err = j.stream.readLine(); n == maxEchoLines {
			err = errNoise
		}
	}
	if err != nil {
		return j.launcherError(ctx, err)
	}
	return nil
}

// maxEchoLines is the maximum number of lines of echo before launchReady.
const maxEchoLines = 100

// launcherError returns the error for a launcher that did not print the expected line.
func (j *job) launcherError(ctx context.Context, err error) error {
	if errors.Is(err, errNoise) {
		return atoll.E("exec", j.run.id, atoll.ErrExecFailed, err)
	}
	return j.run.explainError(ctx, "exec", err)
}

// commandError returns the error for a program that the launcher cannot start. The code is the
// launcher's: 126 or 127.
func commandError(id, program, code string) error {
	if code == "127" {
		return atoll.Errorf("exec", id, atoll.ErrCommandNotFound, "%q: no such command", program)
	}
	return atoll.Errorf("exec", id, atoll.ErrExecFailed, "cannot execute %q", program)
}

// awaitExec waits for a program that runs without a launcher. It returns nil when the program
// runs, or the engine's reason why it does not.
func (j *job) awaitExec(ctx context.Context, cmd *atoll.Command) error {
	for {
		st, err := j.run.p.engine.ExecInspect(ctx, j.exec, client.ExecInspectOptions{})
		if err != nil {
			return j.run.explainError(ctx, "exec", err)
		}
		if st.PID != 0 {
			return nil
		}
		if !st.Running && st.ExitCode != 0 {
			return j.execError(ctx, cmd, j.stream.readRest())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// execError returns the error for a command that the engine could not execute. It finds the kind
// in the engine's message.
func (j *job) execError(ctx context.Context, cmd *atoll.Command, output string) error {
	output = strings.TrimSpace(output)
	kind := atoll.ErrExecFailed
	switch {
	case strings.Contains(output, "unable to find user"), strings.Contains(output, "unable to find group"), strings.Contains(output, "no matching entries"):
		kind = atoll.ErrInvalid
	case !j.run.shell && (strings.Contains(output, "executable file not found") || strings.Contains(output, "no such file or directory")):
		kind = atoll.ErrCommandNotFound
	case strings.Contains(output, "resource temporarily unavailable"), strings.Contains(output, "cannot allocate memory"):
		kind = atoll.ErrExhausted
	default: // the engine has many messages for a container that is about to end
		if ended := j.run.p.checkRunning(ctx, "exec", j.run.id); ended != nil {
			return ended
		}
	}
	return atoll.Errorf("exec", j.run.id, kind, "%q: %s", cmd.Args[0], output)
}

// copyStreams starts to copy stdin and the outputs until they end.
func (j *job) copyStreams(tty bool, stdio table.Stdio) {
	go func() {
		defer close(j.outputEnded)
		defer j.stream.close()
		defer stdio.Stdout.Close()
		defer stdio.Stderr.Close()
		_ = j.stream.copyOutput(stdio.Stdout, stdio.Stderr) // if the connection breaks, the rest of the output is lost
	}()
	go func() {
		defer stdio.Stdin.Close()
		if _, err := io.Copy(j.stream.conn.Conn, stdio.Stdin); err == nil && !tty {
			_ = j.stream.conn.CloseWrite()
		}
	}()
}

// PID implements table.Handle.
func (j *job) PID() int { return j.pid }

// Wait implements table.Handle.
func (j *job) Wait() atoll.Exit {
	defer j.stream.close()
	select {
	case <-j.outputEnded:
	case <-j.run.ctx.Done():
		return unknownExit
	}
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		over := j.run.hasEnded()
		if exit, ended := j.findExit(); ended {
			return exit
		}
		if over {
			return unknownExit
		}
		select {
		case <-j.run.ctx.Done():
			return unknownExit
		case <-time.After(pause):
		}
	}
}

// unknownExit is the exit of a process whose end nobody has observed.
var unknownExit = atoll.Exit{Code: -1}

// findExit asks the engine whether the process has ended, and how.
func (j *job) findExit() (exit atoll.Exit, ended bool) {
	if j.exec == "" {
		r, err := j.run.p.findRecord(j.run.ctx, "wait", j.run.id)
		if err == nil && r.Exit != nil {
			return *r.Exit, true
		}
		return unknownExit, atoll.KindOf(err) == atoll.ErrNotFound
	}
	st, err := j.run.p.engine.ExecInspect(j.run.ctx, j.exec, client.ExecInspectOptions{})
	if err != nil {
		return unknownExit, cerrdefs.IsNotFound(err) // the engine has forgotten the process: the container is gone, or the engine was restarted
	}
	return atoll.Exit{Code: st.ExitCode}, !st.Running
}

var errNoShell = fmt.Errorf("%w: the image has no %s to send a signal with", errors.ErrUnsupported, shellPath)

// Signal implements table.Handle.
func (j *job) Signal(sig atoll.Signal) error {
	// The signal may end the run, and run.ctx with it, before the engine has answered.
	ctx, cancel := j.run.p.detachContext(j.run.ctx)
	defer cancel()
	switch {
	case j.run.hasEnded():
		return os.ErrProcessDone
	case j.exec == "":
		return j.signalMain(ctx, sig)
	case j.pid == 0:
		return errNoShell
	}
	code, output, err := j.run.runScript(ctx, j.user, signalScript, strconv.Itoa(j.pid), strconv.Itoa(int(sig)))
	switch {
	case err != nil:
		return signalError(err)
	case code == exitGone:
		return os.ErrProcessDone
	case code != 0:
		return fmt.Errorf("cannot signal the process: %s", output)
	}
	return nil
}

// signalMain signals the container's init, which forwards the signal to the main process.
func (j *job) signalMain(ctx context.Context, sig atoll.Signal) error {
	if slices.Contains(unforwardedSignals, sig) {
		return fmt.Errorf("%w: without a guest %v does not reach the main process", errors.ErrUnsupported, sig)
	}
	_, err := j.run.p.engine.ContainerKill(ctx, j.run.r.container, client.ContainerKillOptions{Signal: strconv.Itoa(int(sig))})
	if err == nil {
		return nil
	}
	err = j.run.explainError(ctx, "signal", err)
	if sig == atoll.SIGKILL && atoll.KindOf(err) == atoll.ErrStopped && !errors.Is(err, errPaused) {
		return nil // a slow engine may say that the container it has just killed does not run
	}
	return signalError(err)
}

// unforwardedSignals are the signals that the container's init does not forward.
var unforwardedSignals = []atoll.Signal{4, 5, 6, 7, 8, 11, atoll.SIGSTOP, 21, 22, 31}

// signalError returns the error for a signal that was not sent. If the sandbox is paused, the
// kind is ErrConflict instead of ErrStopped: the process has not ended.
func signalError(err error) error {
	if errors.Is(err, errPaused) {
		return atoll.E("signal", "", atoll.ErrConflict, errPaused)
	}
	return err
}

// Kill implements table.Handle.
func (j *job) Kill() error {
	if j.run.Closed() { // the container has ended, or the provider is closed
		return nil
	}
	if j.exec == "" {
		return j.Signal(atoll.SIGKILL)
	}
	if j.pid == 0 {
		return errNoShell
	}
	ctx, cancel := context.WithTimeout(j.run.ctx, j.run.p.slowFactor(j.run.ctx)*cleanupTimeout)
	defer cancel()
	code, output, err := j.run.runScript(ctx, j.user, killScript, strconv.Itoa(j.pid), j.mark)
	if err == nil && code != 0 {
		err = fmt.Errorf("cannot kill the process: %s", output)
	}
	return signalError(err)
}

// Resize implements table.Remote.
func (j *job) Resize(ctx context.Context, size atoll.Size) error {
	h, w := uint(size.Rows), uint(size.Cols)
	var err error
	if j.exec == "" {
		_, err = j.run.p.engine.ContainerResize(ctx, j.run.r.container, client.ContainerResizeOptions{Height: h, Width: w})
	} else {
		_, err = j.run.p.engine.ExecResize(ctx, j.exec, client.ExecResizeOptions{Height: h, Width: w})
	}
	if err != nil {
		return j.run.explainError(ctx, "resize", err)
	}
	return nil
}

// runScript lets the engine run a shell script in the container. It returns the exit code and
// the beginning of the output.
func (run *plainRun) runScript(ctx context.Context, user, script string, args ...string) (code int, output string, err error) {
	made, err := run.p.engine.ExecCreate(ctx, run.r.container, client.ExecCreateOptions{
		Cmd: append([]string{shellPath, "-c", script, shellPath}, args...), User: user, WorkingDir: "/", Env: []string{"LC_ALL=C"},
		AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return 0, "", run.explainError(ctx, "signal", err)
	}
	hijacked, err := run.p.engine.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return 0, "", run.explainError(ctx, "signal", err)
	}
	s := newStream(hijacked.HijackedResponse, false)
	defer s.close()
	defer context.AfterFunc(ctx, s.close)()
	output = strings.TrimSpace(s.readRest())
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 100*time.Millisecond) {
		st, err := run.p.engine.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
		if err != nil {
			return 0, output, run.explainError(ctx, "signal", err)
		}
		if !st.Running {
			return st.ExitCode, output, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return 0, output, ctx.Err()
}

var _ table.Remote = (*job)(nil)
