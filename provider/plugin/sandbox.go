package plugin

import (
	"context"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// A sandbox is a sandbox of a Backend, and its handle.
type sandbox struct {
	p    *backendProvider
	id   string
	spec *atoll.Spec   // with its defaults and a clean Workdir; never changed
	busy chan struct{} // capacity 1; full while an operation changes the state

	dirty atomic.Bool // processes were started since the last StopSandbox
	lost  atomic.Bool // the backend no longer has the sandbox

	mu     sync.Mutex
	status atoll.Status
	table  *process.Table // of the current or last run; nil before the first one
	timers [2]*time.Timer // of Spec.TTL and Spec.AutoRemove; nil if there is none
}

// newSandbox returns a sandbox that the caller has acquired.
func newSandbox(p *backendProvider, spec *atoll.Spec) *sandbox {
	s := &sandbox{p: p, id: spec.ID, spec: spec.Clone(), busy: make(chan struct{}, 1), status: atoll.Status{
		ID: spec.ID, Provider: p.info.Name, Spec: *spec, State: atoll.StateCreating,
		Image: spec.Image, Created: time.Now(), Caps: p.info.Caps,
	}}
	s.spec.Workdir = path.Clean(spec.Workdir)
	s.busy <- struct{}{}
	return s
}

// createSandbox creates the sandbox, and starts it unless its spec has NoStart.
func (s *sandbox) createSandbox(ctx context.Context) error {
	if err := s.p.backend.CreateSandbox(ctx, s.spec); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.spec.NoStart {
		s.changeStatus(func(st *atoll.Status) { st.State = atoll.StateCreated })
		return nil
	}
	return s.startRun(ctx)
}

// undoCreate removes a sandbox whose creation has failed.
func (s *sandbox) undoCreate(ctx context.Context) {
	s.killStrays(ctx)
	ctx, cancel := s.changeContext(ctx)
	defer cancel()
	if err := s.p.backend.RemoveSandbox(ctx, s.id); err != nil {
		s.p.log.Warn("undo create", "sandbox", s.id, "err", err)
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.forgetSandbox(s)
}

// changeContext returns the context of a change that has begun. It does not end with ctx, but after
// changeTimeout, or endTimeout if the provider is being closed.
func (s *sandbox) changeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := changeTimeout
	if s.p.isClosed() {
		timeout = endTimeout
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// acquireLock waits for the operation in progress. Kinds: ErrNotFound, ErrUnavailable (the provider is
// closed).
func (s *sandbox) acquireLock(ctx context.Context, op string) error {
	select {
	case s.busy <- struct{}{}:
	default:
		select {
		case s.busy <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var err error
	if !s.isPresent() {
		err = atoll.E(op, s.id, atoll.ErrNotFound, nil)
	} else if s.p.isClosed() {
		err = atoll.Errorf(op, s.id, atoll.ErrUnavailable, "the provider is closed")
	}
	if err != nil {
		s.releaseLock()
	}
	return err
}

// releaseLock ends an operation.
func (s *sandbox) releaseLock() { <-s.busy }

// isPresent reports whether the sandbox has been created and not been removed.
func (s *sandbox) isPresent() bool {
	_, ok := s.currentStatus()
	return ok
}

// currentStatus returns the status of a sandbox that exists.
func (s *sandbox) currentStatus() (st atoll.Status, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.State == atoll.StateCreating || s.status.State == atoll.StateRemoved {
		return atoll.Status{}, false
	}
	return s.status.Clone(), true
}

// changeStatus calls change, publishes the new status and sets the timers. The caller has acquired the
// sandbox.
func (s *sandbox) changeStatus(change func(st *atoll.Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updateStatus(change)
}

// updateStatus is changeStatus with s.mu held.
func (s *sandbox) updateStatus(change func(st *atoll.Status)) {
	if s.status.State == atoll.StateCreating && s.spec.TTL > 0 {
		s.status.Expires = s.status.Created.Add(time.Duration(s.spec.TTL))
	}
	change(&s.status)
	s.status.Ready = s.status.State == atoll.StateRunning
	s.p.hub.Publish(s.status)
	var linger time.Time
	if s.spec.AutoRemove && !s.status.Stopped.IsZero() {
		linger = s.status.Stopped.Add(atoll.AutoRemoveDelay)
	}
	for i, due := range []time.Time{s.status.Expires, linger} {
		if s.timers[i] != nil {
			s.timers[i].Stop()
			s.timers[i] = nil
		}
		if !due.IsZero() && s.status.State != atoll.StateRemoved {
			s.timers[i] = time.AfterFunc(max(time.Until(due), 0), func() { s.p.spawnWork(s.removeIfDue) })
		}
	}
}

// removeIfDue removes the sandbox at the end of its TTL, or after the end of its main process if it has
// AutoRemove. If the backend fails, it tries again after removeRetryDelay.
func (s *sandbox) removeIfDue() {
	ctx, cancel := context.WithTimeout(context.Background(), changeTimeout)
	defer cancel()
	if s.acquireLock(ctx, "remove") != nil {
		return
	}
	defer s.releaseLock()
	st, _ := s.currentStatus()
	expired := !st.Expires.IsZero() && !time.Now().Before(st.Expires)
	lingered := s.spec.AutoRemove && !st.Stopped.IsZero() && !time.Now().Before(st.Stopped.Add(atoll.AutoRemoveDelay))
	if !expired && !lingered {
		return
	}
	if err := s.removeSandbox(ctx); err != nil {
		s.p.log.Error("remove", "sandbox", s.id, "err", err)
		time.AfterFunc(removeRetryDelay, func() { s.p.spawnWork(s.removeIfDue) })
	}
}

// startRun starts the sandbox with its main process. The caller has acquired it. If start fails, the state
// does not change.
func (s *sandbox) startRun(ctx context.Context) error {
	_, remote := s.p.backend.(*httpBackend)
	table := process.NewTable()
	table.Remote = remote
	var main atoll.Process
	if len(s.spec.Cmd) > 0 {
		var err error
		cmd := &atoll.Command{Args: s.spec.Cmd, TTY: s.spec.TTY, OpenStdin: s.spec.OpenStdin}
		if main, err = s.startProcess(ctx, table, atoll.MainProcess, cmd); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.table = table
	s.updateStatus(func(st *atoll.Status) {
		st.State, st.Reason, st.Exit = atoll.StateRunning, "", nil
		st.Started, st.Stopped = time.Now(), time.Time{}
	})
	s.mu.Unlock()
	if main != nil {
		s.p.spawnWork(func() { s.awaitMain(table, main) })
	}
	return nil
}

// awaitMain waits for the end of the main process, and then stops the sandbox.
func (s *sandbox) awaitMain(table *process.Table, main atoll.Process) {
	exit, err := main.Wait(context.Background())
	s.endRun(table, func(st *atoll.Status) {
		if err != nil {
			st.State, st.Reason, st.Exit = atoll.StateFailed, "the exit of the main process is unknown", nil
			return
		}
		st.State, st.Reason, st.Exit = exit.State(), exit.String(), &exit
	})
}

// endRun stops the sandbox if it is still in the run of table.
func (s *sandbox) endRun(table *process.Table, change func(st *atoll.Status)) {
	if s.acquireLock(context.Background(), "stop") != nil {
		return
	}
	defer s.releaseLock()
	if current, err := s.runningTable("stop"); err != nil || current != table {
		return
	}
	s.stopRun(context.Background(), change)
}

// stopRun ends all processes of a running sandbox and changes its status. The caller has acquired it.
func (s *sandbox) stopRun(ctx context.Context, change func(st *atoll.Status)) {
	_ = s.table.Close() // never fails
	s.killStrays(ctx)
	var exit *atoll.Exit
	for _, st := range s.table.List() {
		if st.ID == atoll.MainProcess {
			exit = st.Exit
		}
	}
	s.changeStatus(func(st *atoll.Status) {
		st.Stopped, st.Exit = time.Now(), exit
		change(st)
	})
}

// killStrays kills the processes that the table no longer knows, such as orphans. It logs an error, and
// tries again at the next call.
func (s *sandbox) killStrays(ctx context.Context) {
	if !s.dirty.Swap(false) {
		return
	}
	ctx, cancel := s.changeContext(ctx)
	defer cancel()
	if err := s.p.backend.StopSandbox(ctx, s.id); err != nil {
		s.dirty.Store(true)
		s.p.log.Warn("stop", "sandbox", s.id, "err", err)
	}
}

// removeSandbox removes the sandbox. The caller has acquired it.
func (s *sandbox) removeSandbox(ctx context.Context) error {
	if st, ok := s.currentStatus(); !ok {
		return nil
	} else if st.State == atoll.StateRunning {
		s.stopRun(ctx, func(st *atoll.Status) { st.State = atoll.StateStopped })
	}
	s.killStrays(ctx)
	ctx, cancel := s.changeContext(ctx)
	defer cancel()
	if err := s.p.backend.RemoveSandbox(ctx, s.id); err != nil {
		return completeError("remove", s.id, err)
	}
	s.p.mu.Lock() // the id and the name are free when the handles say that the sandbox is gone
	defer s.p.mu.Unlock()
	s.p.forgetSandbox(s)
	s.changeStatus(func(st *atoll.Status) { st.State = atoll.StateRemoved })
	return nil
}

// runningTable returns the table of a sandbox that runs.
func (s *sandbox) runningTable(op string) (*process.Table, error) {
	table, err := s.lastTable(op)
	if err != nil {
		table = nil
	}
	return table, err
}

// lastTable returns the table of a sandbox that runs, or ErrStopped with that of its last run.
func (s *sandbox) lastTable(op string) (*process.Table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.status.State {
	case atoll.StateRemoved:
		return nil, atoll.E(op, s.id, atoll.ErrNotFound, nil)
	case atoll.StateRunning:
		return s.table, nil
	}
	return s.table, atoll.E(op, s.id, atoll.ErrStopped, nil)
}

// startProcess starts a command in a run of the sandbox.
func (s *sandbox) startProcess(ctx context.Context, table *process.Table, id string, cmd *atoll.Command) (atoll.Process, error) {
	var hold time.Duration
	if id == atoll.MainProcess && s.spec.AutoRemove {
		hold = atoll.AutoRemoveDelay
	}
	s.dirty.Store(true)
	p, err := table.StartHeld(ctx, id, cmd, hold, func(stdio process.Stdio) (process.Handle, error) {
		p, err := s.p.backend.StartProcess(ctx, s.spec, s.completeCommand(cmd), Stdio(stdio))
		if err != nil {
			return nil, err
		}
		return backendProcess{p}, nil
	})
	if atoll.KindOf(err) == atoll.ErrNotFound {
		s.lost.Store(true)
		s.p.spawnWork(func() {
			s.endRun(table, func(st *atoll.Status) { st.State, st.Reason = atoll.StateFailed, "the backend has lost the sandbox" })
		})
		return nil, atoll.Errorf("exec", s.id, atoll.ErrStopped, "the backend has lost the sandbox: %w", err)
	}
	return p, completeError("exec", s.id, err)
}

// completeCommand returns the command for the backend.
func (s *sandbox) completeCommand(cmd *atoll.Command) *atoll.Command {
	c := *cmd
	c.Stdin, c.Stdout, c.Stderr = nil, nil, nil
	c.OpenStdin = cmd.Stdin != nil || cmd.OpenStdin || cmd.TTY != nil
	if c.Env = process.Environ(s.spec.Environ(), cmd.Env); len(c.Args) == 0 {
		c.Args = []string{"/bin/sh"}
	}
	if !path.IsAbs(c.Dir) {
		c.Dir = path.Join(s.spec.Workdir, c.Dir)
	}
	c.Dir = path.Clean(c.Dir)
	if c.User == "" {
		c.User = s.spec.User
	}
	return &c
}

// A backendProcess is a Process as a process.Table needs it.
type backendProcess struct{ Process }

// PID implements process.Handle.
func (backendProcess) PID() int { return 0 }

// Kill implements process.Handle.
func (p backendProcess) Kill() error { return p.Signal(atoll.SIGKILL) }

// Resize implements process.Remote. The processes of a remote backend have no terminals.
func (backendProcess) Resize(context.Context, atoll.Size) error { return atoll.ErrUnsupported }

// ID implements atoll.Sandbox.
func (s *sandbox) ID() string { return s.id }

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	if err := ctx.Err(); err != nil {
		return atoll.Status{}, err
	}
	st, ok := s.currentStatus()
	if !ok {
		return atoll.Status{}, atoll.E("status", s.id, atoll.ErrNotFound, nil)
	}
	return st, nil
}

// Start implements atoll.Sandbox.
func (s *sandbox) Start(ctx context.Context) error {
	if err := s.acquireLock(ctx, "start"); err != nil {
		return err
	}
	defer s.releaseLock()
	st, _ := s.currentStatus()
	switch {
	case st.State == atoll.StateRunning:
		return nil
	case !st.Started.IsZero() && !s.p.info.Caps.Restart:
		return s.p.unsupportedError("start", s.id, "restart")
	case s.lost.Load():
		return atoll.Errorf("start", s.id, atoll.ErrUnavailable, "the backend has lost the sandbox: remove it")
	}
	return s.startRun(ctx)
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if err := s.acquireLock(ctx, "stop"); err != nil {
		return err
	}
	defer s.releaseLock()
	st, _ := s.currentStatus()
	if st.State != atoll.StateRunning {
		return nil
	}
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	if err := s.table.Stop(ctx, grace); err != nil {
		return err
	}
	s.stopRun(ctx, func(st *atoll.Status) { st.State = atoll.StateStopped })
	return nil
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	if err := s.acquireLock(ctx, "extend"); err != nil {
		return err
	}
	defer s.releaseLock()
	st, _ := s.currentStatus()
	extended, err := st.Extended(ttl, time.Now())
	if err != nil {
		return err
	}
	s.changeStatus(func(st *atoll.Status) { st.Expires = extended.Expires })
	return nil
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if err := cmd.CheckCaps(s.p.info.Name, s.p.info.Caps); err != nil {
		return nil, err
	}
	if cmd.User != "" && !s.p.info.Caps.Users {
		return nil, s.p.unsupportedError("exec", s.id, "users other than the default one")
	}
	table, err := s.runningTable("exec")
	if err != nil {
		return nil, err
	}
	return s.startProcess(ctx, table, "", cmd)
}

// Process implements atoll.Sandbox.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	table, err := s.lastTable("process")
	if table == nil {
		return nil, err
	}
	p, missing := table.Get(id)
	if missing == nil {
		return p, nil
	}
	if err == nil {
		err = missing
	}
	return nil, err
}

// Processes implements atoll.ProcessLister.
func (s *sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	table, err := s.lastTable("processes")
	if table == nil {
		return nil, err
	}
	list := table.List()
	if len(list) == 0 && err != nil {
		return nil, err
	}
	return list, nil
}

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, _ ...atoll.RemoveOption) error {
	err := s.acquireLock(ctx, "remove")
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.releaseLock()
	return s.removeSandbox(ctx)
}

var (
	_ atoll.Sandbox       = (*sandbox)(nil)
	_ atoll.Extender      = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
	_ process.Remote      = backendProcess{}
)
