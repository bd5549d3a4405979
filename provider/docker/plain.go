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

// plainCaps are those of sandboxes without a guest: what the Engine API alone can
// do, and a shell in the image.
func plainCaps() atoll.Caps {
	c := info.Caps
	c.Reattach, c.ExitSignal, c.IdleStop, c.Files, c.Dial, c.Cache = false, false, false, false, false, false
	return c
}

// A life is a sandbox without a guest, from its start to its end: the processes
// that this provider has started in it, whose streams come from the engine, and
// which only it knows.
type life struct {
	p     *Provider
	id    string
	r     *record // as it was when it began
	shell bool    // there is one in the image
	table *table.Table

	ctx   context.Context // ends with the provider's interest in it
	quit  context.CancelFunc
	work  sync.WaitGroup // starts that may have been given up
	over  chan struct{}  // closed when the container has ended
	done  chan struct{}  // closed when all has been cleared away
	begun sync.Once
}

// shellPath is the shell that commands are started by, and signalled.
const shellPath = "/bin/sh"

// newLife returns that of a sandbox which runs, or is just about to.
func (p *Provider) newLife(ctx context.Context, r *record) (*life, error) {
	shell, err := p.executable(ctx, r.container, shellPath)
	if err != nil {
		return nil, err
	}
	l := &life{p: p, id: r.ID, r: r, shell: shell, table: table.NewTable(), over: make(chan struct{}), done: make(chan struct{})}
	l.table.Remote = true
	l.ctx, l.quit = context.WithCancel(context.Background())
	return l, nil
}

// rejoin returns the life of a sandbox that runs already. What of it has been
// before, only the engine's log knows.
func (p *Provider) rejoin(ctx context.Context, op string, r *record) (guestconn.Inside, error) {
	l, err := p.newLife(ctx, r)
	if err == nil && len(r.Spec.Cmd) > 0 {
		err = l.follow(ctx)
	}
	if err != nil {
		if l != nil {
			_ = l.Close()
		}
		return nil, p.unreached(ctx, op, r.ID, err)
	}
	l.begin()
	return l, nil
}

// startPlain starts the container of a sandbox without a guest, having listened to
// its main process before.
func (p *Provider) startPlain(ctx context.Context, r *record) error {
	l, err := p.newLife(ctx, r)
	if err != nil {
		return err
	}
	if len(r.Spec.Cmd) > 0 {
		err = l.attach(ctx)
	}
	if err == nil {
		err = settled(ctx, func(ctx context.Context) error {
			_, err := p.engine.ContainerStart(ctx, r.container, client.ContainerStartOptions{})
			return err
		})
	}
	if err == nil && r.Spec.TTY != nil {
		_, err = p.engine.ContainerResize(ctx, r.container, client.ContainerResizeOptions{Height: uint(r.Spec.TTY.Rows), Width: uint(r.Spec.TTY.Cols)})
		if cerrdefs.IsConflict(err) { // it has ended already
			err = nil
		}
	}
	if err == nil {
		l.r, err = p.inspect(ctx, "start", r.ID)
	}
	if err != nil {
		_ = l.Close()
		return p.failed(ctx, "start", r.ID, initless(p.refusal(ctx, &r.Spec, err)))
	}
	l.begin()
	p.visits.Settle(r.ID, l)
	return nil
}

// initless explains an engine that has no init for containers.
func initless(err error) error {
	if err != nil && strings.Contains(err.Error(), "docker-init") {
		return atoll.Errorf("start", "", atoll.ErrUnavailable, "the engine has no docker-init, which a container without a guest needs: install tini on its machine (%w)", err)
	}
	return err
}

// begin watches over the life of a container that has been started.
func (l *life) begin() {
	l.begun.Do(func() {
		go func() {
			defer close(l.done)
			l.watch()
			close(l.over)
			_ = l.table.Close()
			l.quit()
			l.work.Wait()
		}()
	})
}

// watch returns when the container has ended, or the provider lost interest. An
// engine that cannot be reached is asked again.
func (l *life) watch() {
	for l.ctx.Err() == nil {
		ended := l.p.engine.ContainerWait(l.ctx, l.r.container, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		select {
		case <-ended.Result:
			return
		case <-ended.Error:
		}
		now, err := l.p.inspect(l.ctx, "wait", l.id)
		if atoll.KindOf(err) == atoll.ErrNotFound || err == nil && !l.goesOn(now) {
			return
		}
		select {
		case <-l.ctx.Done():
		case <-time.After(again):
		}
	}
}

// goesOn reports whether what the engine says now is still of this life.
func (l *life) goesOn(now *record) bool {
	return now.Started.Equal(l.r.Started) && (now.State == atoll.StateRunning || now.State == atoll.StatePaused)
}

// rest waits until the last output has been read of a sandbox that has been stopped.
func (p *Provider) rest(id string) {
	if l, ok := p.visits.Last(id).(*life); ok {
		select {
		case <-l.done:
		case <-time.After(restTime):
		}
	}
}

// restTime is how long the engine may take to deliver that.
const restTime = 10 * time.Second

// isOver reports whether the container has ended.
func (l *life) isOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// Closed reports whether it is of no use any more.
func (l *life) Closed() bool { return l.isOver() || l.ctx.Err() != nil }

// Close lets go of the processes, which live on as long as the sandbox does.
func (l *life) Close() error {
	l.quit()
	l.begin()
	<-l.done
	return nil
}

// Sandbox is what the provider's sandbox hands its calls on to.
func (l *life) Sandbox() atoll.Sandbox { return plainSandbox{&sandbox{l.p, l.id}, l} }

// A plainSandbox is the inside of a sandbox that has no guest. Only its processes
// are asked for.
type plainSandbox struct {
	atoll.Sandbox
	l *life
}

// Exec implements atoll.Sandbox.
func (s plainSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	return s.l.execute(ctx, cmd)
}

// Process implements atoll.Sandbox.
func (s plainSandbox) Process(_ context.Context, id string) (atoll.Process, error) {
	return s.l.table.Get(id)
}

// Processes implements atoll.ProcessLister.
func (s plainSandbox) Processes(context.Context) ([]atoll.ProcessStatus, error) {
	return s.l.table.List(), nil
}

// Files implements atoll.Filer. The engine could read and write files, but as root
// and not as a whole.
func (s plainSandbox) Files() atoll.FS {
	return lazyfs.FS(func(_ context.Context, op string, _ []string, _ func(context.Context, atoll.FS) error) error {
		return noFiles(op, s.l.id)
	})
}

func noFiles(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "a sandbox without a guest serves no files: run tar or cat in it, which take and give streams")
}

// execute starts cmd, as Exec does.
func (l *life) execute(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	with := *cmd
	if len(with.Args) == 0 {
		shell, err := l.userShell(ctx, cmd)
		if err != nil {
			return nil, err
		}
		with.Args = []string{shell}
	}
	if err := l.refuse(&with); err != nil {
		return nil, err
	}
	dir, err := l.dir(ctx, cmd.Dir)
	if err != nil {
		return nil, err
	}
	return l.table.Start(ctx, "", &with, func(io table.Stdio) (table.Handle, error) {
		return l.start(ctx, &with, dir, io)
	})
}

// refuse says what of a command cannot be had without a guest.
func (l *life) refuse(cmd *atoll.Command) error {
	if cmd.Timeout > 0 && !l.shell {
		return atoll.Errorf("exec", l.id, atoll.ErrUnsupported, "a time limit: the image has no %s to end the command with", shellPath)
	}
	return nil
}

// userShell is what runs on a terminal when no command is given; see
// atoll.DetectShell.
func (l *life) userShell(ctx context.Context, cmd *atoll.Command) (string, error) {
	env := slices.Concat(l.r.env, cmd.Env)
	if shell := table.Lookup(table.Environ(env), "SHELL"); shell != "" && shell != "/bin/false" {
		return shell, nil
	}
	const bash = "/bin/bash"
	there, err := l.p.executable(ctx, l.r.container, bash)
	if there {
		return bash, err
	}
	return shellPath, err
}

// dir is the directory for a command to start in, which must be there.
func (l *life) dir(ctx context.Context, name string) (string, error) {
	if name == "" {
		return l.r.Spec.Workdir, nil
	}
	if !path.IsAbs(name) {
		name = path.Join(l.r.Spec.Workdir, name)
	}
	st, err := l.p.lookUp(ctx, l.r.container, name)
	switch {
	case err == nil && st == nil:
		return "", atoll.Errorf("exec", l.id, atoll.ErrExecFailed, "workdir %q does not exist in the sandbox", name)
	case err != nil:
		return "", l.explained(ctx, "exec", err)
	case !st.Mode.IsDir():
		return "", atoll.Errorf("exec", l.id, atoll.ErrExecFailed, "workdir %q is not a directory", name)
	}
	return name, nil
}

// environ is what a command adds to the environment of the container.
func (l *life) environ(cmd *atoll.Command) []string {
	var env []string
	if cmd.TTY != nil && table.Lookup(l.r.env, "TERM") == "" {
		env = []string{"TERM=xterm-256color"}
	}
	return table.Environ(env, cmd.Env)
}

// explained gives an error of the engine about a container that must run its
// meaning. It has many for one that is coming to its end.
func (l *life) explained(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if ended := l.p.ends(ctx, op, l.id); ended != nil {
		return ended
	}
	return atoll.E(op, l.id, atoll.ErrUnavailable, err)
}

var (
	_ atoll.ProcessLister = plainSandbox{}
	_ atoll.Filer         = plainSandbox{}
	_ guestconn.Inside    = (*life)(nil)
)

// ask asks all processes of a sandbox without a guest to end, in the place of
// each user that we know of: who has no capabilities can signal only what is his.
// What comes first says that all have ended but the one that only waits, or why they
// could not be asked; the channel is closed when ctx has ended.
func (p *Provider) ask(ctx context.Context, r *record, askMain func() error) <-chan error {
	ready := make(chan error, 1)
	go func() {
		defer close(ready)
		if err := p.askAll(ctx, r, askMain); atoll.KindOf(err) != atoll.ErrStopped && ctx.Err() == nil {
			ready <- err
		}
		<-ctx.Done()
	}()
	return ready
}

// askAll returns when nothing is left that has to end.
func (p *Provider) askAll(ctx context.Context, r *record, askMain func() error) error {
	in, err := p.inside(ctx, "stop", r.ID)
	if err != nil {
		return err
	}
	l := in.(plainSandbox).l
	if !l.shell { // then there is a main process, and with it all others end
		err := askMain()
		if err == nil {
			<-ctx.Done()
		}
		return err
	}
	users := []string{""}
	for _, st := range l.table.List() {
		if st.Exit == nil && st.ID != atoll.MainProcess && !slices.Contains(users, st.User) {
			users = append(users, st.User)
		}
	}
	for _, user := range users {
		_, _, _ = l.run(ctx, user, stopScript) // who cannot be asked is killed
	}
	if _, _, err := l.run(ctx, "", leaveScript); err != nil {
		<-ctx.Done() // it ends with the container
	}
	return nil
}
