package docker

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
	table "github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
)

// plainCaps returns the caps of sandboxes without a guest.
func plainCaps() atoll.Caps {
	c := info.Caps
	c.Reattach, c.ExitSignal, c.IdleStop, c.Files, c.Dial, c.Cache = false, false, false, false, false, false
	return c
}

// A plainRun is one run of a sandbox without a guest, from its start to its end. It has the
// processes that this provider has started; no other program can reach their streams, which come
// from the engine.
type plainRun struct {
	p     *Provider
	id    string
	r     *record // as of the start
	shell bool    // the image has a shell at shellPath
	table *table.Table

	ctx     context.Context // ends when the run ends or the provider lets go of it
	cancel  context.CancelFunc
	work    sync.WaitGroup // starts that may outlast their callers
	ended   chan struct{}  // closed when the container has ended
	done    chan struct{}  // closed when all goroutines have ended
	watched sync.Once
}

// shellPath is the shell that starts and signals commands.
const shellPath = "/bin/sh"

// newRun returns the plainRun of a sandbox that runs or is about to start.
func (p *Provider) newRun(ctx context.Context, r *record) (*plainRun, error) {
	shell, err := p.isExecutable(ctx, r.container, shellPath)
	if err != nil {
		return nil, err
	}
	run := &plainRun{p: p, id: r.ID, r: r, shell: shell, table: table.NewTable(), ended: make(chan struct{}), done: make(chan struct{})}
	run.table.Remote = true
	run.ctx, run.cancel = context.WithCancel(context.Background())
	return run, nil
}

// rejoinRun returns the plainRun of a sandbox that already runs. It gets earlier output of the
// main process from the engine's log.
func (p *Provider) rejoinRun(ctx context.Context, op string, r *record) (guestconn.Connection, error) {
	run, err := p.newRun(ctx, r)
	if err == nil && len(r.Spec.Cmd) > 0 {
		err = run.followMain(ctx)
	}
	if err != nil {
		if run != nil {
			_ = run.Close()
		}
		return nil, p.unreachableError(ctx, op, r.ID, err)
	}
	run.watchRun()
	return run, nil
}

// launchPlain starts the container of a sandbox without a guest. It attaches to the main process
// first.
func (p *Provider) launchPlain(ctx context.Context, r *record) error {
	run, err := p.newRun(ctx, r)
	if err != nil {
		return err
	}
	if len(r.Spec.Cmd) > 0 {
		err = run.attachMain(ctx)
	}
	if err == nil {
		err = p.runToEnd(ctx, func(ctx context.Context) error {
			_, err := p.engine.ContainerStart(ctx, r.container, client.ContainerStartOptions{})
			return err
		})
	}
	if err == nil && r.Spec.TTY != nil {
		_, err = p.engine.ContainerResize(ctx, r.container, client.ContainerResizeOptions{Height: uint(r.Spec.TTY.Rows), Width: uint(r.Spec.TTY.Cols)})
		if cerrdefs.IsConflict(err) { // it has already ended
			err = nil
		}
	}
	if err == nil {
		run.r, err = p.findRecord(ctx, "start", r.ID)
	}
	if err != nil {
		_ = run.Close()
		return p.wrapError(ctx, "start", r.ID, missingInitError(p.containerError(ctx, &r.Spec, err)))
	}
	run.watchRun()
	p.connections.Replace(r.ID, run)
	return nil
}

// missingInitError explains the error of an engine that has no init for containers.
func missingInitError(err error) error {
	if err != nil && strings.Contains(err.Error(), "docker-init") {
		return atoll.Errorf("start", "", atoll.ErrUnavailable, "the engine has no docker-init, which a container without a guest needs: install tini on its machine (%w)", err)
	}
	return err
}

// watchRun starts a goroutine that waits for the end of the container and cleans up. A second
// call does nothing.
func (run *plainRun) watchRun() {
	run.watched.Do(func() {
		go func() {
			defer close(run.done)
			run.awaitEnd()
			close(run.ended)
			_ = run.table.Close()
			run.cancel()
			run.work.Wait()
		}()
	})
}

// awaitEnd returns when the container has ended, or the provider has let go of it. If it cannot
// reach the engine, it tries again.
func (run *plainRun) awaitEnd() {
	for run.ctx.Err() == nil {
		ended := run.p.engine.ContainerWait(run.ctx, run.r.container, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		select {
		case <-ended.Result:
			return
		case <-ended.Error:
		}
		now, err := run.p.findRecord(run.ctx, "wait", run.id)
		if atoll.KindOf(err) == atoll.ErrNotFound || err == nil && !run.isSameRun(now) {
			return
		}
		select {
		case <-run.ctx.Done():
		case <-time.After(retryDelay):
		}
	}
}

// isSameRun reports whether now, a later record, shows that this run goes on.
func (run *plainRun) isSameRun(now *record) bool {
	return now.Started.Equal(run.r.Started) && (now.State == atoll.StateRunning || now.State == atoll.StatePaused)
}

// awaitOutput waits up to outputTimeout until the last output of a stopped sandbox has been
// read.
func (p *Provider) awaitOutput(id string) {
	if run, ok := p.connections.Latest(id).(*plainRun); ok {
		select {
		case <-run.done:
		case <-time.After(p.slowFactor(context.Background()) * outputTimeout):
		}
	}
}

// outputTimeout bounds how long the engine takes to deliver the last output, on hardware.
const outputTimeout = 10 * time.Second

// hasEnded reports whether the container has ended.
func (run *plainRun) hasEnded() bool {
	select {
	case <-run.ended:
		return true
	default:
		return false
	}
}

// Closed implements guestconn.Inside.
func (run *plainRun) Closed() bool { return run.hasEnded() || run.ctx.Err() != nil }

// Close lets go of the processes, which go on running as long as the sandbox does.
func (run *plainRun) Close() error {
	run.cancel()
	run.watchRun()
	<-run.done
	return nil
}

// Sandbox implements guestconn.Inside.
func (run *plainRun) Sandbox() atoll.Sandbox { return plainSandbox{&sandbox{run.p, run.id}, run} }

// A plainSandbox is a running sandbox without a guest. The provider uses only its processes and
// files.
type plainSandbox struct {
	atoll.Sandbox
	run *plainRun
}

// Exec implements atoll.Sandbox.
func (s plainSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	return s.run.execCommand(ctx, cmd)
}

// Process implements atoll.Sandbox.
func (s plainSandbox) Process(_ context.Context, id string) (atoll.Process, error) {
	return s.run.table.Get(id)
}

// Processes implements atoll.ProcessLister.
func (s plainSandbox) Processes(context.Context) ([]atoll.ProcessStatus, error) {
	return s.run.table.List(), nil
}

// Files implements atoll.Filer. All its methods fail: the engine could read and write files, but
// only as root, and no single operation is atomic.
func (s plainSandbox) Files() atoll.FS {
	return lazyfs.FS(func(_ context.Context, op string, _ []string, _ func(context.Context, atoll.FS) error) error {
		return noFilesError(op, s.run.id)
	})
}

func noFilesError(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "a sandbox without a guest has no file operations: run tar or cat in it instead")
}

// execCommand implements Exec.
func (run *plainRun) execCommand(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	with := *cmd
	if len(with.Args) == 0 {
		shell, err := run.defaultShell(ctx, cmd)
		if err != nil {
			return nil, err
		}
		with.Args = []string{shell}
	}
	if err := run.checkTimeout(&with); err != nil {
		return nil, err
	}
	dir, err := run.commandDir(ctx, cmd.Dir)
	if err != nil {
		return nil, err
	}
	return run.table.Start(ctx, "", &with, func(io table.Stdio) (table.Handle, error) {
		return run.startJob(ctx, &with, dir, io)
	})
}

// checkTimeout returns an error if cmd has a timeout and the image has no shell to end it with.
func (run *plainRun) checkTimeout(cmd *atoll.Command) error {
	if cmd.Timeout > 0 && !run.shell {
		return atoll.Errorf("exec", run.id, atoll.ErrUnsupported, "no timeouts: the image has no %s to end the command with", shellPath)
	}
	return nil
}

// defaultShell returns the program for a terminal without a command; see atoll.DetectShell.
func (run *plainRun) defaultShell(ctx context.Context, cmd *atoll.Command) (string, error) {
	env := slices.Concat(run.r.env, cmd.Env)
	if shell := table.Lookup(table.Environ(env), "SHELL"); shell != "" && shell != "/bin/false" {
		return shell, nil
	}
	const bash = "/bin/bash"
	there, err := run.p.isExecutable(ctx, run.r.container, bash)
	if there {
		return bash, err
	}
	return shellPath, err
}

// commandDir returns the directory in which a command starts. It fails if that does not exist.
func (run *plainRun) commandDir(ctx context.Context, name string) (string, error) {
	if name == "" {
		return run.r.Spec.Workdir, nil
	}
	if !path.IsAbs(name) {
		name = path.Join(run.r.Spec.Workdir, name)
	}
	st, err := run.p.statFile(ctx, run.r.container, name)
	switch {
	case err == nil && st == nil:
		return "", atoll.Errorf("exec", run.id, atoll.ErrExecFailed, "workdir %q does not exist in the sandbox", name)
	case err != nil:
		return "", run.explainError(ctx, "exec", err)
	case !st.Mode.IsDir():
		return "", atoll.Errorf("exec", run.id, atoll.ErrExecFailed, "workdir %q is not a directory", name)
	}
	return name, nil
}

// commandEnv returns the variables that a command adds to the environment of the container.
func (run *plainRun) commandEnv(cmd *atoll.Command) []string {
	var env []string
	if cmd.TTY != nil && table.Lookup(run.r.env, "TERM") == "" {
		env = []string{"TERM=xterm-256color"}
	}
	return table.Environ(env, cmd.Env)
}

// explainError returns the error for a failed request about a container that must run. The
// engine's own errors for one that is about to end vary.
func (run *plainRun) explainError(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if ended := run.p.checkRunning(ctx, op, run.id); ended != nil {
		return ended
	}
	return atoll.E(op, run.id, atoll.ErrUnavailable, err)
}

var (
	_ atoll.ProcessLister  = plainSandbox{}
	_ atoll.Filer          = plainSandbox{}
	_ guestconn.Connection = (*plainRun)(nil)
)

// beginGracefulStop asks all processes of a sandbox without a guest to end. The channel gets nil
// when all have ended but the idle process, or the error of asking; it closes when ctx has ended
// and nothing runs on its behalf.
func (p *Provider) beginGracefulStop(ctx context.Context, r *record, signalMain func() error) <-chan error {
	ready := make(chan error, 1)
	go func() {
		defer close(ready)
		if err := p.stopGracefully(ctx, r, signalMain); atoll.KindOf(err) != atoll.ErrStopped && ctx.Err() == nil {
			ready <- err
		}
		<-ctx.Done()
	}()
	return ready
}

// stopGracefully sends SIGTERM to all processes, and returns when only the idle process is left.
// It sends them once as each user with processes: without capabilities, a process can signal only
// processes of its own user.
func (p *Provider) stopGracefully(ctx context.Context, r *record, signalMain func() error) error {
	in, err := p.reachGuest(ctx, "stop", r.ID)
	if err != nil {
		return err
	}
	run := in.(plainSandbox).run
	if !run.shell { // then the sandbox has a main process, and all others end with it
		err := signalMain()
		if err == nil {
			<-ctx.Done()
		}
		return err
	}
	users := []string{""}
	for _, st := range run.table.List() {
		if st.Exit == nil && st.ID != atoll.MainProcess && !slices.Contains(users, st.User) {
			users = append(users, st.User)
		}
	}
	for _, user := range users {
		_, _, _ = run.runScript(ctx, user, stopScript) // on failure, the engine kills them after the grace period
	}
	if _, _, err := run.runScript(ctx, "", awaitOthersScript); err != nil {
		<-ctx.Done() // the engine ends it with the container
	}
	return nil
}
