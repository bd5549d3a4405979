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
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A Sandbox implements atoll.Sandbox over the engine that this process owns. While it
// lives, it is the only writer of the sandbox's record. The engine reads its exported
// fields.
type Sandbox struct {
	Job   *Job
	Log   *slog.Logger // writes to the supervisor's log in the sandbox's directory
	Group cgroup.Group // the cgroup of this process and all that it starts

	dir       statedir.Dir
	isolation atoll.Isolation
	engine    Engine
	use       idletracker.Use
	refused   *refusalLog
	netLog    *netLog

	adopting atomic.Bool // the engine does not fit Job yet: calls do not find the sandbox

	freezing sync.Mutex // held while the engine is paused or resumed and the record is updated

	mu     sync.Mutex
	record *statedir.Record
	// updateNetwork changes the policy of the engine's network; nil if it has none; guarded by mu
	updateNetwork func(atoll.Network) error
	ending        chan struct{} // not nil while the sandbox is being ended: no more Exec; closed if its end is cancelled

	renewed  chan struct{} // capacity 1: Extend has changed the expiry
	over     chan struct{} // closed when the sandbox has ended
	done     chan struct{} // closed when the supervisor has nothing left to serve
	doneOnce sync.Once
}

func newSandbox(job *Job, isolation atoll.Isolation, log *slog.Logger) *Sandbox {
	s := &Sandbox{
		Job: new(Job), Log: log, Group: cgroup.Open(cgroup.Root).Group(job.Record.Cgroup),
		dir: statedir.Dir(job.State), isolation: isolation,
		renewed: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}),
	}
	s.setJob(job)
	return s
}

// setJob makes s the sandbox of a job. Nothing else may use s meanwhile.
func (s *Sandbox) setJob(job *Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.Job = *job
	record := job.Record
	record.Supervisor, _ = statedir.Identify(os.Getpid()) // on failure, the lock still shows that we live
	st := &record.Status
	st.State, st.Ready, st.Reason, st.Exit = atoll.StateRunning, true, "", nil
	st.Started, st.Stopped = time.Now(), time.Time{}
	s.record = &record
	s.refused = newRefusalLog(job.Dir, func(err error) { s.Log.Warn("list of refusals", "err", err) })
	s.netLog = newNetLog(job.Dir, func(err error) { s.Log.Warn("log of the network", "err", err) })
}

// ID returns the sandbox's id.
func (s *Sandbox) ID() string { return s.Job.Spec.ID }

// Status returns the record's status. It never fails.
func (s *Sandbox) Status(context.Context) (atoll.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Status.Clone(), nil
}

// Start does nothing: a supervisor exists only while its sandbox runs.
func (s *Sandbox) Start(context.Context) error { return s.MustRun("start") }

// MustRun returns ErrStopped if the sandbox does not run, for an operation that needs that.
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

// Ended reports whether the engine has ended, or is about to.
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

// Processes lists the processes of this run of the sandbox.
func (s *Sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	return s.engine.Processes(ctx)
}

// Pause freezes the processes inside.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.changePaused(ctx, "pause", s.engine.Pause, atoll.StatePaused)
}

// Resume lets the processes inside continue.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.changePaused(ctx, "resume", s.engine.Resume, atoll.StateRunning)
}

// changePaused pauses or resumes the engine by calling do, and records the state.
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

// Paused reports whether the sandbox is paused.
func (s *Sandbox) Paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Status.State == atoll.StatePaused
}

// saveRecord writes the record; s.mu is held.
func (s *Sandbox) saveRecord() error { return s.dir.Write(s.record) }

// beginEnd begins the end of the sandbox's run, once. won reports whether the caller has to
// carry it out. If not, other is a channel that is closed if the caller that does cancels
// it.
func (s *Sandbox) beginEnd() (won bool, other <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending != nil {
		return false, s.ending
	}
	s.ending = make(chan struct{})
	return true, nil
}

// awaitBeginEnd is beginEnd that waits while another caller tries. won is false when the
// sandbox has ended.
func (s *Sandbox) awaitBeginEnd(ctx context.Context) (won bool, err error) {
	for {
		won, other := s.beginEnd()
		if won {
			return true, nil
		}
		select {
		case <-s.over:
			return false, nil
		case <-other: // the end was cancelled: the sandbox keeps running
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// killAndBeginEnd is awaitBeginEnd that kills the engine first, and so does not wait for a
// caller that is saving files.
func (s *Sandbox) killAndBeginEnd(ctx context.Context) (won bool, err error) {
	won, _ = s.beginEnd() // first, so that failing calls to the engine report the reason
	s.engine.Kill()
	if won {
		return true, nil
	}
	return s.awaitBeginEnd(ctx)
}

// Stop ends every process, saves the files that the next start needs, and then ends the
// engine and this supervisor. Start makes new ones.
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
	s.finishServing() // a caller that stops it needs no more output
	return nil
}

// stopEngine carries out Stop, for the reason given. The caller won beginEnd, which is
// cancelled if the files cannot be saved.
func (s *Sandbox) stopEngine(grace time.Duration, reason string) error {
	err := s.engine.Terminate(grace)
	if err == nil {
		err = s.engine.Keep()
	}
	if err != nil && s.engine.Lost(err) {
		s.cancelEnd("") // Watch then records the engine's death
		return atoll.Errorf("stop", s.ID(), atoll.ErrInternal, "%s died while saving the sandbox's files; they are lost: %w", s.engine.Name(), err)
	}
	if err != nil {
		s.cancelEnd("")
		return atoll.Errorf("stop", s.ID(), bootKind(err), "the sandbox still runs, because its files could not be saved: %w", err)
	}
	err = s.recordEnd(atoll.StateStopped, reason, nil)
	s.finishServing()
	return err
}

// Remove ends everything and saves nothing, even if a Stop is in progress. The provider
// deletes the files when this supervisor has gone.
func (s *Sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	s.mu.Lock()
	err := s.dir.BeginRemoval(s.record, atoll.ApplyRemoveOptions(opts...))
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

// cancelEnd undoes beginEnd. It records whether the sandbox runs or is paused, and reason.
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

// recordEnd destroys the engine and records how the sandbox ended. The caller won beginEnd.
func (s *Sandbox) recordEnd(state atoll.State, reason string, exit *atoll.Exit) error {
	defer close(s.over)
	var errs []error
	errs = append(errs, s.engine.Destroy())
	s.saveMain() // before the record sends readers to the file
	s.refused.closeFile()
	s.netLog.closeFile()
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

// mainExit returns the exit of the main process; nil if there was none.
func (s *Sandbox) mainExit() *atoll.Exit {
	list, err := s.engine.Processes(context.Background())
	if err != nil {
		s.Log.Warn("cannot read the exit of the main process", "err", err)
	}
	for _, st := range list {
		if st.ID == atoll.MainProcess {
			return st.Exit
		}
	}
	return nil
}

// Watch begins to wait for the engine to end unasked, and then records the end of the
// sandbox.
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
	if reason := s.engine.DeathReason(); reason != "" {
		died += ": " + reason
	}
	return died + "; see " + filepath.Join(s.Job.Dir, LogName)
}

// startMain starts the main process; the sandbox ends with it.
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

// saveRetryDelay is the delay between two attempts to save files that could not be saved.
const saveRetryDelay = 10 * time.Second

// watchMain ends the sandbox when its main process has ended. While its files cannot be
// saved, because the disk is full, the engine keeps them.
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
	// Readers still want the last output.
	select {
	case <-s.done:
	case <-time.After(atoll.AutoRemoveDelay):
		if s.Job.Spec.AutoRemove {
			s.removeSelf(true, removeTimeout)
		}
		s.finishServing()
	}
}

// Files returns the sandbox's file system.
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
	l.SetUnlinkOnClose(false) // it is removed with the directory
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
