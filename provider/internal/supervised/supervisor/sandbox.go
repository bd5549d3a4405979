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

// A Box is the supervisor's sandbox: the atoll.Sandbox over the engine that this
// process owns. It is the only writer of the sandbox's record while it lives. The
// engine reads its exported fields.
type Sandbox struct {
	Job   *Job
	Log   *slog.Logger // the supervisor's own, in the sandbox's directory
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
	done     chan struct{} // closed when the supervisor has nothing left to serve
	doneOnce sync.Once
}

func newSandbox(job *Job, isolation atoll.Isolation, log *slog.Logger) *Sandbox {
	record := job.Record
	record.Supervisor, _ = statedir.Identify(os.Getpid()) // without it, the lock still tells
	st := &record.Status
	st.State, st.Ready, st.Reason, st.Exit = atoll.StateRunning, true, "", nil
	st.Started, st.Stopped = time.Now(), time.Time{}
	return &Sandbox{
		Job: job, Log: log, Group: cgroup.Open(cgroup.Root).Group(job.Record.Cgroup),
		dir: statedir.Dir(job.State), isolation: isolation, record: &record,
		renewed: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}),
	}
}

// ID is the sandbox's id.
func (s *Sandbox) ID() string { return s.Job.Spec.ID }

// Status is what the record says.
func (s *Sandbox) Status(context.Context) (atoll.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Status.Clone(), nil
}

// Start does nothing: a supervisor is there only while its sandbox runs.
func (s *Sandbox) Start(context.Context) error { return s.MustRun("start") }

// MustRun is the error of an operation that needs a running sandbox.
func (s *Sandbox) MustRun(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending != nil:
		return atoll.E(op, s.ID(), atoll.ErrStopped, nil)
	case s.record.Status.State == atoll.StatePaused:
		return atoll.Errorf(op, s.ID(), atoll.ErrStopped, "sandbox is paused: resume it first")
	}
	return nil
}

// Ended reports whether the engine has gone, or is about to.
func (s *Sandbox) Ended() bool {
	select {
	case <-s.engine.Exited():
		return true
	default:
		return s.Ending()
	}
}

// Ending reports whether the sandbox is being ended, for whatever reason.
func (s *Sandbox) Ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending != nil
}

// Exec starts a command; see atoll.Sandbox.
func (s *Sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	return s.execProcess(ctx, "", cmd)
}

func (s *Sandbox) execProcess(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if err := s.MustRun("exec"); err != nil {
		return nil, err
	}
	return s.engine.Exec(ctx, id, cmd)
}

// Process finds a process of this run of the sandbox.
func (s *Sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	return s.engine.Process(ctx, id)
}

// Processes lists them.
func (s *Sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	return s.engine.Processes(ctx)
}

// Pause freezes what is inside.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.changePaused(ctx, "pause", s.engine.Pause, atoll.StatePaused)
}

// Resume lets it run on.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.changePaused(ctx, "resume", s.engine.Resume, atoll.StateRunning)
}

func (s *Sandbox) changePaused(ctx context.Context, op string, do func(context.Context) error, state atoll.State) error {
	s.freezing.Lock()
	defer s.freezing.Unlock()
	if s.Ended() {
		return atoll.E(op, s.ID(), atoll.ErrStopped, nil)
	}
	if err := do(ctx); err != nil {
		return atoll.E(op, s.ID(), atoll.KindOf(err), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending != nil || s.record.Status.State == state {
		return nil
	}
	s.record.Status.State = state
	s.record.Status.Ready = state == atoll.StateRunning
	return s.saveRecord()
}

// Paused reports whether nothing in the sandbox runs on.
func (s *Sandbox) Paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Status.State == atoll.StatePaused
}

// saveRecord writes the record; s.mu is held.
func (s *Sandbox) saveRecord() error { return s.dir.Write(s.record) }

// beginEnd ends the sandbox's life in this supervisor once; it reports whether the
// caller is the one to do it, and if not, what is closed when the one that is has
// given up.
func (s *Sandbox) beginEnd() (won bool, other <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending != nil {
		return false, s.ending
	}
	s.ending = make(chan struct{})
	return true, nil
}

// awaitBeginEnd is toEnd that waits while another tries. won is false when the
// sandbox has come to its end.
func (s *Sandbox) awaitBeginEnd(ctx context.Context) (won bool, err error) {
	for {
		won, other := s.beginEnd()
		if won {
			return true, nil
		}
		select {
		case <-s.over:
			return false, nil
		case <-other: // and the sandbox goes on
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// killAndBeginEnd is waitToEnd that does not wait for who has something to save: it kills
// the engine.
func (s *Sandbox) killAndBeginEnd(ctx context.Context) (won bool, err error) {
	won, _ = s.beginEnd() // so that whoever loses the engine knows why
	s.engine.Kill()
	if won {
		return true, nil
	}
	return s.awaitBeginEnd(ctx)
}

// Stop ends every process, saves what is to be kept, and then ends the engine and
// this supervisor. Start makes a new one.
func (s *Sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	won, err := s.awaitBeginEnd(ctx)
	if err != nil {
		return err
	}
	if won {
		return s.stopEngine(grace, "") // without ctx, which must not leave it half done
	}
	s.finishServing() // whoever stops it has read what he wanted to
	return nil
}

// stopEngine does what Stop does, for the reason given. The caller won toEnd, which is
// taken back when the files cannot be saved.
func (s *Sandbox) stopEngine(grace time.Duration, reason string) error {
	err := s.engine.Terminate(grace)
	if err == nil {
		err = s.engine.Keep()
	}
	if err != nil && s.engine.Lost(err) {
		s.cancelEnd("") // to its end, which Watch sees to
		return atoll.Errorf("stop", s.ID(), atoll.ErrInternal, "%s died while its files were being saved, and they are lost: %w", s.engine.Name(), err)
	}
	if err != nil {
		s.cancelEnd("")
		return atoll.Errorf("stop", s.ID(), bootKind(err), "its files could not be saved, so it still runs: %w", err)
	}
	err = s.recordEnd(atoll.StateStopped, reason, nil)
	s.finishServing()
	return err
}

// Remove ends everything and saves nothing, also when a Stop is in progress; the
// provider deletes what is on disk when this supervisor has gone.
func (s *Sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	s.mu.Lock()
	err := s.dir.BeginRemoval(s.record, atoll.RemoveOpts(opts...))
	s.mu.Unlock()
	if err != nil {
		return atoll.E("remove", s.ID(), atoll.ErrInternal, err)
	}
	won, err := s.killAndBeginEnd(ctx)
	if err != nil {
		return err
	}
	defer s.finishServing()
	if !won {
		return nil
	}
	return s.recordEnd(atoll.StateStopped, "", nil)
}

// finishServing lets the supervisor's main function return.
func (s *Sandbox) finishServing() { s.doneOnce.Do(func() { close(s.done) }) }

// cancelEnd takes back toEnd. The record says then whether what is inside runs, and
// reason.
func (s *Sandbox) cancelEnd(reason string) {
	frozen := s.engine.Frozen()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.record.Status
	state := atoll.StateRunning
	if frozen {
		state = atoll.StatePaused
	}
	if st.State != state || st.Reason != reason {
		st.State, st.Ready, st.Reason = state, !frozen, reason
		if err := s.saveRecord(); err != nil {
			s.Log.Error("stop", "err", err)
		}
	}
	close(s.ending)
	s.ending = nil
}

// recordEnd takes the sandbox down and records how it ended. The caller won toEnd.
func (s *Sandbox) recordEnd(state atoll.State, reason string, exit *atoll.Exit) error {
	defer close(s.over)
	var errs []error
	errs = append(errs, s.engine.Destroy())
	s.saveMain() // before the record says that there is something to look for
	if exit == nil {
		exit = s.mainExit()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.record.Status
	st.State, st.Reason, st.Exit, st.Ready = state, reason, exit, false
	st.Stopped = time.Now()
	errs = append(errs, s.saveRecord())
	if err := errors.Join(errs...); err != nil {
		s.Log.Error("stop", "err", err)
		return atoll.E("stop", s.ID(), atoll.ErrInternal, err)
	}
	return nil
}

// mainExit is how the main process ended, if there was one.
func (s *Sandbox) mainExit() *atoll.Exit {
	list, err := s.engine.Processes(context.Background())
	if err != nil {
		s.Log.Warn("how the main process ended is not known", "err", err)
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
func (s *Sandbox) Watch() {
	go func() {
		<-s.engine.Exited()
		if won, _ := s.awaitBeginEnd(context.Background()); !won {
			return
		}
		reason := s.DeathReason()
		s.Log.Error(s.engine.Name()+" died", "reason", reason)
		_ = s.recordEnd(atoll.StateFailed, reason, nil) // logged
		s.finishServing()
	}()
}

// DeathReason says why the engine died.
func (s *Sandbox) DeathReason() string {
	if s.Group.OOMKilled() {
		return "out of memory: the sandbox used more than " + s.Job.Spec.Resources.Memory.String()
	}
	died := s.engine.Name() + " died"
	if why := s.engine.DeathReason(); why != "" {
		died += ": " + why
	}
	return died + "; see " + filepath.Join(s.Job.Dir, LogName)
}

// startMain starts the main process, whose end is the sandbox's.
func (s *Sandbox) startMain(ctx context.Context) error {
	spec := &s.Job.Spec
	if len(spec.Cmd) == 0 {
		return nil
	}
	p, err := s.execProcess(ctx, atoll.MainProcess, &atoll.Command{Args: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin})
	if err != nil {
		return err
	}
	go s.watchMain(p)
	return nil
}

// saveRetryDelay is how long after files could not be saved that is tried again.
const saveRetryDelay = 10 * time.Second

// watchMain ends the sandbox when its main process has ended. While its files
// cannot be saved, because the disk is full, they are kept where they are.
func (s *Sandbox) watchMain(p atoll.Process) {
	exit, err := p.Wait(context.Background())
	if err != nil {
		return
	}
	for {
		if won, _ := s.awaitBeginEnd(context.Background()); !won {
			return // the sandbox ended first
		}
		err := s.engine.Terminate(0)
		if err == nil && !s.Job.Spec.AutoRemove {
			err = s.engine.Keep()
		}
		if err == nil || s.engine.Lost(err) {
			break
		}
		s.Log.Error("stop", "err", err)
		s.cancelEnd(fmt.Sprintf("its main process %s, and its files could not be saved: %v", exit.String(), err))
		select {
		case <-s.over:
			return
		case <-time.After(saveRetryDelay):
		}
	}
	reason := ""
	if exit.State() == atoll.StateFailed {
		reason = "main process " + exit.String()
	}
	_ = s.recordEnd(exit.State(), reason, &exit) // logged
	// Its last output is still to be read.
	select {
	case <-s.done:
	case <-time.After(atoll.AutoRemoveLinger):
		if s.Job.Spec.AutoRemove {
			s.removeSelf(true, removeTimeout)
		}
		s.finishServing()
	}
}

// Files is the sandbox's file system.
func (s *Sandbox) Files() atoll.FS { return s.engine.Files() }

// listenSocket opens the socket that serves the API of this sandbox.
func listenSocket(dir string) (net.Listener, error) {
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

// Dial connects to the supervisor of the sandbox whose directory is dir.
func Dial(ctx context.Context, dir string) (conn net.Conn, err error) {
	err = socket.Short(filepath.Join(dir, SocketName), func(short string) (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}
