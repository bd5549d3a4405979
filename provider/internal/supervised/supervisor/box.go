package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A Box is the keeper's sandbox: the atoll.Sandbox over the engine that this
// process owns. It is the only writer of the sandbox's record while it lives. The
// engine reads its exported fields.
type Box struct {
	Job   *Job
	Log   *slog.Logger // the keeper's own, in the sandbox's directory
	Group cgroup.Group // that this process is in, and all that it starts

	dir       statedir.Dir
	isolation atoll.Isolation
	engine    Engine
	use       idletracker.Use

	freezing sync.Mutex // while it is paused or resumed, the engine and the record

	mu     sync.Mutex
	record *statedir.Record
	ending chan struct{} // no more Exec: being stopped, removed, or dead; nil while it lives, closed when it goes on

	renewed  chan struct{} // capacity 1: Extend has changed when the sandbox expires
	over     chan struct{} // closed when the sandbox has come to its end
	done     chan struct{} // closed when the keeper has nothing left to serve
	doneOnce sync.Once
}

func newBox(job *Job, isolation atoll.Isolation, log *slog.Logger) *Box {
	record := job.Record
	record.Keeper, _ = statedir.Identify(os.Getpid()) // without it, the lock still tells
	st := &record.Status
	st.State, st.Ready, st.Reason, st.Exit = atoll.StateRunning, true, "", nil
	st.Started, st.Stopped = time.Now(), time.Time{}
	return &Box{
		Job: job, Log: log, Group: cgroup.Open(cgroup.Root).Group(job.Record.Cgroup),
		dir: statedir.Dir(job.State), isolation: isolation, record: &record,
		renewed: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}),
	}
}

// ID is the sandbox's id.
func (b *Box) ID() string { return b.Job.Spec.ID }

// Status is what the record says.
func (b *Box) Status(context.Context) (atoll.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record.Status.Clone(), nil
}

// Start does nothing: a keeper is there only while its sandbox runs.
func (b *Box) Start(context.Context) error { return b.MustRun("start") }

// MustRun is the error of an operation that needs a running sandbox.
func (b *Box) MustRun(op string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ending != nil:
		return atoll.E(op, b.ID(), atoll.ErrStopped, nil)
	case b.record.Status.State == atoll.StatePaused:
		return atoll.Errorf(op, b.ID(), atoll.ErrStopped, "sandbox is paused: resume it first")
	}
	return nil
}

// Ended reports whether the engine has gone, or is about to.
func (b *Box) Ended() bool {
	select {
	case <-b.engine.Exited():
		return true
	default:
		return b.Ending()
	}
}

// Ending reports whether the sandbox is being ended, for whatever reason.
func (b *Box) Ending() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ending != nil
}

// Exec starts a command; see atoll.Sandbox.
func (b *Box) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	return b.exec(ctx, "", cmd)
}

func (b *Box) exec(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if err := b.MustRun("exec"); err != nil {
		return nil, err
	}
	return b.engine.Exec(ctx, id, cmd)
}

// Process finds a process of this run of the sandbox.
func (b *Box) Process(ctx context.Context, id string) (atoll.Process, error) {
	return b.engine.Process(ctx, id)
}

// Processes lists them.
func (b *Box) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	return b.engine.Processes(ctx)
}

// Pause freezes what is inside.
func (b *Box) Pause(ctx context.Context) error {
	return b.freeze(ctx, "pause", b.engine.Pause, atoll.StatePaused)
}

// Resume lets it run on.
func (b *Box) Resume(ctx context.Context) error {
	return b.freeze(ctx, "resume", b.engine.Resume, atoll.StateRunning)
}

func (b *Box) freeze(ctx context.Context, op string, do func(context.Context) error, state atoll.State) error {
	b.freezing.Lock()
	defer b.freezing.Unlock()
	if b.Ended() {
		return atoll.E(op, b.ID(), atoll.ErrStopped, nil)
	}
	if err := do(ctx); err != nil {
		return atoll.E(op, b.ID(), atoll.KindOf(err), err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending != nil || b.record.Status.State == state {
		return nil
	}
	b.record.Status.State = state
	b.record.Status.Ready = state == atoll.StateRunning
	return b.save()
}

// Paused reports whether nothing in the sandbox runs on.
func (b *Box) Paused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record.Status.State == atoll.StatePaused
}

// save writes the record; b.mu is held.
func (b *Box) save() error { return b.dir.Write(b.record) }

// toEnd ends the sandbox's life in this keeper once; it reports whether the
// caller is the one to do it, and if not, what is closed when the one that is has
// given up.
func (b *Box) toEnd() (won bool, other <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending != nil {
		return false, b.ending
	}
	b.ending = make(chan struct{})
	return true, nil
}

// waitToEnd is toEnd that waits while another tries. won is false when the
// sandbox has come to its end.
func (b *Box) waitToEnd(ctx context.Context) (won bool, err error) {
	for {
		won, other := b.toEnd()
		if won {
			return true, nil
		}
		select {
		case <-b.over:
			return false, nil
		case <-other: // and the sandbox goes on
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// killToEnd is waitToEnd that does not wait for who has something to save: it kills
// the engine.
func (b *Box) killToEnd(ctx context.Context) (won bool, err error) {
	won, _ = b.toEnd() // so that whoever loses the engine knows why
	b.engine.Kill()
	if won {
		return true, nil
	}
	return b.waitToEnd(ctx)
}

// Stop ends every process, saves what is to be kept, and then ends the engine and
// this keeper. Start makes a new one.
func (b *Box) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	won, err := b.waitToEnd(ctx)
	if err != nil {
		return err
	}
	if won {
		return b.stop(grace, "") // without ctx, which must not leave it half done
	}
	b.leave() // whoever stops it has read what he wanted to
	return nil
}

// stop does what Stop does, for the reason given. The caller won toEnd, which is
// taken back when the files cannot be saved.
func (b *Box) stop(grace time.Duration, reason string) error {
	err := b.engine.Terminate(grace)
	if err == nil {
		err = b.engine.Keep()
	}
	if err != nil && b.engine.Lost(err) {
		b.goOn("") // to its end, which Watch sees to
		return atoll.Errorf("stop", b.ID(), atoll.ErrInternal, "%s died while its files were being saved, and they are lost: %w", b.engine.Name(), err)
	}
	if err != nil {
		b.goOn("")
		return atoll.Errorf("stop", b.ID(), bootKind(err), "its files could not be saved, so it still runs: %w", err)
	}
	err = b.finish(atoll.StateStopped, reason, nil)
	b.leave()
	return err
}

// Remove ends everything and saves nothing, also when a Stop is in progress; the
// provider deletes what is on disk when this keeper has gone.
func (b *Box) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	b.mu.Lock()
	err := b.dir.BeginRemoval(b.record, atoll.RemoveOpts(opts...))
	b.mu.Unlock()
	if err != nil {
		return atoll.E("remove", b.ID(), atoll.ErrInternal, err)
	}
	won, err := b.killToEnd(ctx)
	if err != nil {
		return err
	}
	defer b.leave()
	if !won {
		return nil
	}
	return b.finish(atoll.StateStopped, "", nil)
}

// leave lets the keeper's main function return.
func (b *Box) leave() { b.doneOnce.Do(func() { close(b.done) }) }

// goOn takes back toEnd. The record says then whether what is inside runs, and
// reason.
func (b *Box) goOn(reason string) {
	frozen := b.engine.Frozen()
	b.mu.Lock()
	defer b.mu.Unlock()
	st := &b.record.Status
	state := atoll.StateRunning
	if frozen {
		state = atoll.StatePaused
	}
	if st.State != state || st.Reason != reason {
		st.State, st.Ready, st.Reason = state, !frozen, reason
		if err := b.save(); err != nil {
			b.Log.Error("stop", "err", err)
		}
	}
	close(b.ending)
	b.ending = nil
}

// finish takes the sandbox down and records how it ended. The caller won toEnd.
func (b *Box) finish(state atoll.State, reason string, exit *atoll.Exit) error {
	defer close(b.over)
	var errs []error
	errs = append(errs, b.engine.Destroy())
	b.saveMain() // before the record says that there is something to look for
	if exit == nil {
		exit = b.mainExit()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	st := &b.record.Status
	st.State, st.Reason, st.Exit, st.Ready = state, reason, exit, false
	st.Stopped = time.Now()
	errs = append(errs, b.save())
	if err := errors.Join(errs...); err != nil {
		b.Log.Error("stop", "err", err)
		return atoll.E("stop", b.ID(), atoll.ErrInternal, err)
	}
	return nil
}

// mainExit is how the main process ended, if there was one.
func (b *Box) mainExit() *atoll.Exit {
	list, err := b.engine.Processes(context.Background())
	if err != nil {
		b.Log.Warn("how the main process ended is not known", "err", err)
	}
	for _, st := range list {
		if st.ID == atoll.MainProcess {
			return st.Exit
		}
	}
	return nil
}

// Watch begins to wait for an end of the engine that nobody asked for, which is
// the sandbox's.
func (b *Box) Watch() {
	go func() {
		<-b.engine.Exited()
		if won, _ := b.waitToEnd(context.Background()); !won {
			return
		}
		reason := b.Fate()
		b.Log.Error(b.engine.Name()+" died", "reason", reason)
		_ = b.finish(atoll.StateFailed, reason, nil) // logged
		b.leave()
	}()
}

// Fate says why the engine died.
func (b *Box) Fate() string {
	if b.Group.OOMKilled() {
		return "out of memory: the sandbox used more than " + b.Job.Spec.Resources.Memory.String()
	}
	died := b.engine.Name() + " died"
	if why := b.engine.Fate(); why != "" {
		died += ": " + why
	}
	return died + "; see " + filepath.Join(b.Job.Dir, LogName)
}

// runMain starts the main process, whose end is the sandbox's.
func (b *Box) runMain(ctx context.Context) error {
	spec := &b.Job.Spec
	if len(spec.Cmd) == 0 {
		return nil
	}
	p, err := b.exec(ctx, atoll.MainProcess, &atoll.Command{Args: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin})
	if err != nil {
		return err
	}
	go b.watchMain(p)
	return nil
}

// saveAgain is how long after files could not be saved that is tried again.
const saveAgain = 10 * time.Second

// watchMain ends the sandbox when its main process has ended. While its files
// cannot be saved, because the disk is full, they are kept where they are.
func (b *Box) watchMain(p atoll.Process) {
	exit, err := p.Wait(context.Background())
	if err != nil {
		return
	}
	for {
		if won, _ := b.waitToEnd(context.Background()); !won {
			return // the sandbox ended first
		}
		err := b.engine.Terminate(0)
		if err == nil && !b.Job.Spec.AutoRemove {
			err = b.engine.Keep()
		}
		if err == nil || b.engine.Lost(err) {
			break
		}
		b.Log.Error("stop", "err", err)
		b.goOn(fmt.Sprintf("its main process %s, and its files could not be saved: %v", exit.String(), err))
		select {
		case <-b.over:
			return
		case <-time.After(saveAgain):
		}
	}
	reason := ""
	if exit.State() == atoll.StateFailed {
		reason = "main process " + exit.String()
	}
	_ = b.finish(exit.State(), reason, &exit) // logged
	// Its last output is still to be read.
	select {
	case <-b.done:
	case <-time.After(atoll.AutoRemoveLinger):
		if b.Job.Spec.AutoRemove {
			b.removeSelf(true, removeWait)
		}
		b.leave()
	}
}

// Files is the sandbox's file system.
func (b *Box) Files() atoll.FS { return b.engine.Files() }

// listen opens the socket that serves the API of this sandbox.
func listen(dir string) (net.Listener, error) {
	path := filepath.Join(dir, SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var l *net.UnixListener
	err := socket.Short(path, func(short string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it goes with the directory
	return l, os.Chmod(path, 0o600)
}

// Dial connects to the keeper of the sandbox whose directory is dir.
func Dial(ctx context.Context, dir string) (conn net.Conn, err error) {
	err = socket.Short(filepath.Join(dir, SocketName), func(short string) (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}
