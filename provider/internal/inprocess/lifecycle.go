package inprocess

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// A sandbox is one sandbox, and implements atoll.Sandbox for it.
type sandbox struct {
	p     *Provider
	id    string
	place Place
	busy  chan struct{} // capacity 1; held (full) while an operation changes the state

	// Guarded by busy.
	lock            *fsutil.Lock // held while this program owns the sandbox
	newDataVolume   bool         // Create made the data volume
	newMountVolumes []string     // volumes of mounts that did not exist before Create

	needsSweep atomic.Bool // a process was started since the last sweep
	removing   atomic.Bool // the operation that holds busy removes the sandbox

	mu              sync.Mutex
	st              atoll.Status
	table           *process.Table // of the current or latest run; nil before the first run
	created         bool           // Create has succeeded
	expiryTimer     *time.Timer    // Spec.TTL
	autoRemoveTimer *time.Timer    // Spec.AutoRemove
}

// newSandbox returns a sandbox in StateCreating whose busy is held.
func newSandbox(p *Provider, spec *atoll.Spec) *sandbox {
	info := p.opts.Info
	s := &sandbox{
		p:     p,
		id:    spec.ID,
		place: newPlace(spec, p.volumes),
		busy:  make(chan struct{}, 1),
		st: atoll.Status{
			ID: spec.ID, Provider: info.Name, Spec: *spec, State: atoll.StateCreating,
			Image: cmp.Or(spec.Image, p.opts.Image), Created: time.Now(), Caps: p.capsOf(spec),
		},
	}
	s.busy <- struct{}{}
	return s
}

// createSandbox creates the files of a new sandbox, and starts it unless Spec.NoStart is set. If it
// fails, it removes everything that it created.
func (s *sandbox) createSandbox(ctx context.Context) (err error) {
	defer s.endOperation()
	if err = s.p.checkStep("lock"); err == nil {
		s.lock, err = s.p.lockSandbox(s.id)
	}
	if err != nil {
		return wrapError("create", s.id, err)
	}
	if err := s.p.checkNoRecord(s.id); err != nil {
		s.lock.Release()
		return wrapError("create", s.id, err)
	}
	s.newDataVolume = !s.p.volumes.Has(s.place.Spec.Project, volume.DataName(s.id))
	// Write the record first: New finds the sandbox after a crash, and its volumes are in use.
	if err = s.updateStatus(func(*atoll.Status) {}); err == nil {
		s.newMountVolumes = s.place.missingVolumes(s.p.volumes)
		err = s.place.prepareVolumes(s.p.volumes, s.p.checkStep)
	}
	if err == nil {
		err = s.finishCreate(ctx)
	}
	if err != nil {
		s.undoCreate()
	}
	return wrapError("create", s.id, err)
}

// undoCreate removes what a failed Create has created. It ignores its own errors, since Create returns
// the first one.
func (s *sandbox) undoCreate() {
	_ = s.sweepProcesses()
	s.place.unlinkVolumes()
	if s.newDataVolume {
		_ = s.p.volumes.Remove(s.place.Spec.Project, volume.DataName(s.id), nil)
	}
	for _, vol := range s.newMountVolumes {
		_ = s.p.removeVolume(s.place.Spec.Project, vol, s.id) // fails if another sandbox uses the volume
	}
	s.p.eraseRecord(s)
}

// finishCreate starts the sandbox, unless Spec.NoStart is set, and makes it visible.
func (s *sandbox) finishCreate(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ttl := s.place.Spec.TTL; ttl > 0 {
		s.st.Expires = s.st.Created.Add(time.Duration(ttl))
	}
	if !s.place.Spec.NoStart {
		if err := s.startRun(ctx); err != nil {
			return err
		}
	} else if err := s.updateStatus(func(st *atoll.Status) { st.State = atoll.StateCreated }); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.created = true
	s.p.hub.Publish(s.st)
	s.setTimers()
	return nil
}

// setTimers sets the timers that remove the sandbox. The caller holds s.mu.
func (s *sandbox) setTimers() {
	if !s.st.Expires.IsZero() && s.expiryTimer == nil {
		s.expiryTimer = s.p.scheduleTracked(time.Until(s.st.Expires), func() { s.removeIfDue("expired", s.isExpired) })
	}
	if s.autoRemoveTimer != nil {
		s.autoRemoveTimer.Stop()
	}
	if s.place.Spec.AutoRemove && !s.st.Stopped.IsZero() { // for whatever reason it stopped
		s.autoRemoveTimer = s.p.scheduleTracked(time.Until(s.st.Stopped.Add(atoll.AutoRemoveDelay)), func() { s.removeIfDue("its main process ended", s.isAutoRemoveDue) })
	}
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	if err := s.beginOperation(ctx, "extend"); err != nil {
		return err
	}
	defer s.endOperation()
	s.mu.Lock()
	st, err := s.st.Extended(ttl, time.Now())
	if err == nil && s.expiryTimer != nil {
		s.expiryTimer.Stop()
		s.expiryTimer = nil
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.updateStatus(func(now *atoll.Status) { now.Expires = st.Expires })
}

func (s *sandbox) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range []*time.Timer{s.expiryTimer, s.autoRemoveTimer} {
		if t != nil {
			t.Stop()
		}
	}
}

// isExpired reports whether the sandbox's expiry has passed.
func (s *sandbox) isExpired() bool {
	st, ok := s.currentStatus()
	return ok && !st.Expires.IsZero() && !time.Now().Before(st.Expires)
}

// isAutoRemoveDue reports whether atoll.AutoRemoveDelay has passed since the sandbox stopped.
func (s *sandbox) isAutoRemoveDue() bool {
	st, ok := s.currentStatus()
	return ok && st.State != atoll.StateRunning && !st.Stopped.IsZero() && !time.Now().Before(st.Stopped.Add(atoll.AutoRemoveDelay))
}

// removeIfDue removes the sandbox if due still returns true once no other operation is in progress.
func (s *sandbox) removeIfDue(why string, due func() bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.beginOperation(ctx, "remove"); err != nil {
		return // removed, or left to the next program that opens the provider
	}
	defer s.endOperation()
	if !due() {
		return
	}
	if err := s.removeSandbox(atoll.RemoveOptions{Volumes: true}); err != nil {
		s.p.log.Error("remove", "sandbox", s.id, "reason", why, "err", err)
	}
}

// beginOperation waits until no other operation changes the sandbox, and takes s.busy. Errors: that of
// ctx, ErrNotFound if the sandbox has been removed, and ErrUnavailable if the provider is closed.
func (s *sandbox) beginOperation(ctx context.Context, op string) error {
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
	if !s.isVisible() {
		err = atoll.E(op, s.id, atoll.ErrNotFound, nil)
	} else if s.p.isClosed() {
		err = atoll.Errorf(op, s.id, atoll.ErrUnavailable, "the provider is closed")
	}
	if err != nil {
		s.endOperation()
	}
	return err
}

// endOperation releases s.busy.
func (s *sandbox) endOperation() { <-s.busy }

// isVisible reports whether Create has succeeded and the sandbox has not been removed.
func (s *sandbox) isVisible() bool {
	_, ok := s.currentStatus()
	return ok
}

// currentStatus returns a copy of the status; ok is false if the sandbox is not visible.
func (s *sandbox) currentStatus() (st atoll.Status, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.created || s.st.State == atoll.StateRemoved {
		return atoll.Status{}, false
	}
	return s.st.Clone(), true
}

// updateStatus lets f change the status, publishes it and writes it to the record. The caller holds
// s.busy. updateStatus calls f with s.mu held.
func (s *sandbox) updateStatus(f func(*atoll.Status)) error {
	s.mu.Lock()
	st := s.st.Clone()
	f(&st)
	st.Ready = st.State == atoll.StateRunning
	st.Address = ""
	if st.Ready {
		st.Address = s.p.opts.Address
	}
	s.st = st
	if s.created {
		s.p.hub.Publish(st)
		s.setTimers()
	}
	s.mu.Unlock()
	return s.p.saveRecord(record{st, s.newDataVolume})
}

// updateStatusOrLog is updateStatus for changes that have already happened: it logs an error of
// writing the record.
func (s *sandbox) updateStatusOrLog(f func(*atoll.Status)) {
	if err := s.updateStatus(f); err != nil {
		s.p.log.Warn("record", "sandbox", s.id, "err", err)
	}
}

// startRun starts the main process and marks the sandbox as running. The caller holds s.busy. If
// startRun fails, the sandbox has its previous status and the processes of its latest run.
func (s *sandbox) startRun(ctx context.Context) error {
	spec, table := s.place.Spec, process.NewTable()
	var main atoll.Process
	if len(spec.Cmd) > 0 {
		var err error
		cmd := &atoll.Command{Args: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin}
		if main, err = s.startProcess(ctx, table, atoll.MainProcess, cmd); err != nil {
			return err
		}
	}
	var before atoll.Status
	last := s.table
	err := s.updateStatus(func(st *atoll.Status) {
		before, s.table = st.Clone(), table
		st.State, st.Reason, st.Exit = atoll.StateRunning, "", nil
		st.Started, st.Stopped = time.Now(), time.Time{}
	})
	if err != nil {
		s.killProcesses(table)
		s.updateStatusOrLog(func(st *atoll.Status) { *st, s.table = before, last })
		return err
	}
	s.deleteSavedMain()
	if main != nil {
		s.p.runTracked(func() { s.watchMain(table, main) })
	}
	return nil
}

// watchMain waits for the main process to exit, and then ends the run.
func (s *sandbox) watchMain(table *process.Table, main atoll.Process) {
	exit, err := main.Wait(context.Background())
	if err != nil {
		return // another operation closed the table
	}
	if s.beginOperation(context.Background(), "stop") != nil {
		return
	}
	defer s.endOperation()
	if !s.isCurrentRun(table) {
		return
	}
	s.endRun(func(st *atoll.Status) { st.State, st.Reason, st.Exit = exit.State(), exit.String(), &exit })
}

// isCurrentRun reports whether the sandbox is running and table belongs to that run.
func (s *sandbox) isCurrentRun(table *process.Table) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.State == atoll.StateRunning && s.table == table
}

// endRun ends every process of a running sandbox and lets f change the status. The caller holds
// s.busy.
func (s *sandbox) endRun(f func(*atoll.Status)) {
	s.killProcesses(s.table)
	s.saveMain()
	exit := mainExit(s.table)
	s.updateStatusOrLog(func(st *atoll.Status) {
		st.Stopped, st.Exit = time.Now(), exit
		f(st)
	})
}

// killProcesses kills every process in table, and the processes that they left behind.
func (s *sandbox) killProcesses(table *process.Table) {
	_ = table.Close() // never fails
	if err := s.sweepProcesses(); err != nil {
		s.p.log.Warn("sweep", "sandbox", s.id, "err", err)
	}
}

// sweepProcesses kills processes that are in no table.
func (s *sandbox) sweepProcesses() error {
	if !s.needsSweep.Swap(false) {
		return nil
	}
	err := s.p.opts.Backend.Sweep(s.id)
	if err != nil {
		s.needsSweep.Store(true)
	}
	return err
}

// mainExit returns the exit of the main process, or nil if there is none.
func mainExit(table *process.Table) *atoll.Exit {
	for _, st := range table.List() {
		if st.ID == atoll.MainProcess {
			return st.Exit
		}
	}
	return nil
}

// startProcess starts a process and adds it to table.
func (s *sandbox) startProcess(ctx context.Context, table *process.Table, id string, cmd *atoll.Command) (atoll.Process, error) {
	c := *cmd
	if len(c.Args) == 0 {
		c.Args = []string{s.p.opts.Backend.Shell(&s.place, cmd)}
	}
	s.needsSweep.Store(true)
	p, err := table.StartHeld(ctx, id, &c, s.outputHoldTime(id), func(io process.Stdio) (process.Handle, error) {
		if id == atoll.MainProcess {
			if err := s.p.checkStep("main process"); err != nil {
				return nil, err
			}
		}
		return s.p.opts.Backend.Start(ctx, &s.place, &c, io)
	})
	return p, wrapError("exec", s.id, err)
}

// outputHoldTime returns how long a process's output is held for its first reader. It is longer for
// the main process of an AutoRemove sandbox, to which callers attach after its start.
func (s *sandbox) outputHoldTime(id string) time.Duration {
	if id == atoll.MainProcess && s.place.Spec.AutoRemove {
		return atoll.AutoRemoveDelay
	}
	return 0
}

// shutDown stops the sandbox because the provider closes. It waits for the operation in progress.
func (s *sandbox) shutDown() {
	s.busy <- struct{}{}
	defer s.endOperation()
	defer s.stopTimers()
	st, ok := s.currentStatus()
	if !ok {
		return
	}
	if st.State == atoll.StateRunning {
		s.endRun(func(st *atoll.Status) {
			st.State, st.Reason = atoll.StateStopped, "the program that ran it ended"
		})
	}
	s.lock.Release()
}

// wrapError adds op, id and a kind to err, as far as it lacks them. It returns nil and the errors of a
// context unchanged.
func wrapError(op, id string, err error) error {
	switch e := err.(type) {
	case nil:
		return nil
	case *atoll.Error:
		if e.ID == "" {
			return &atoll.Error{Op: e.Op, ID: id, Kind: e.Kind, Err: e.Err}
		}
		return err
	}
	if err == context.Canceled || err == context.DeadlineExceeded {
		return err
	}
	kind := atoll.KindOf(err)
	if fsutil.IsFull(err) {
		kind = atoll.ErrExhausted
	}
	return atoll.E(op, id, kind, err)
}
