package inprocess

import (
	"cmp"
	"context"
	"net"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

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
	if err := s.beginOperation(ctx, "start"); err != nil {
		return err
	}
	defer s.endOperation()
	if st, _ := s.currentStatus(); st.State == atoll.StateRunning {
		return nil
	}
	return s.startRun(ctx)
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if err := s.beginOperation(ctx, "stop"); err != nil {
		return err
	}
	defer s.endOperation()
	if st, _ := s.currentStatus(); st.State != atoll.StateRunning {
		return nil
	}
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	if err := s.table.Stop(ctx, grace); err != nil {
		return err
	}
	s.endRun(func(st *atoll.Status) { st.State = atoll.StateStopped })
	return nil
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	caps := s.p.capsOf(s.place.Spec)
	if err := cmd.CheckCaps(s.p.opts.Info.Name, caps); err != nil {
		return nil, err
	}
	if !caps.Users && !s.p.opts.Backend.OwnUser(cmd.User) {
		return nil, atoll.Errorf("exec", s.id, atoll.ErrUnsupported, "provider %s has no users other than its own", s.p.opts.Info.Name)
	}
	table, err := s.runningTable("exec")
	if err != nil {
		return nil, err
	}
	return s.startProcess(ctx, table, "", cmd)
}

// runningTable returns the process table of a running sandbox. Kinds: ErrNotFound, ErrStopped.
func (s *sandbox) runningTable(op string) (*process.Table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.st.State == atoll.StateRemoved:
		return nil, atoll.E(op, s.id, atoll.ErrNotFound, nil)
	case s.st.State != atoll.StateRunning:
		return nil, atoll.E(op, s.id, atoll.ErrStopped, nil)
	}
	return s.table, nil
}

// latestTable returns the process table of a running sandbox. If the sandbox is stopped, latestTable
// returns ErrStopped together with the table of its latest run, which may be nil.
func (s *sandbox) latestTable(op string) (*process.Table, error) {
	table, err := s.runningTable(op)
	if atoll.KindOf(err) == atoll.ErrStopped {
		s.mu.Lock()
		defer s.mu.Unlock()
		table = s.table
	}
	return table, err
}

// Process implements atoll.Sandbox. While the sandbox is stopped, Process finds the processes of the
// latest run. A later program finds only its main process.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	table, err := s.latestTable("process")
	if table == nil {
		return nil, err
	}
	p, missing := table.Get(id)
	if missing != nil {
		return nil, cmp.Or(err, missing)
	}
	return p, nil
}

// Processes implements atoll.ProcessLister. It lists the processes that Process finds.
func (s *sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	table, err := s.latestTable("processes")
	if table == nil {
		return nil, err
	}
	list := table.List()
	if len(list) == 0 && err != nil {
		return nil, err
	}
	return list, nil
}

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if _, err := s.runningTable("dial"); err != nil {
		return nil, err
	}
	if !s.p.capsOf(s.place.Spec).Dial {
		return nil, atoll.Errorf("dial", s.id, atoll.ErrUnsupported, "provider %s reaches no port of a sandbox without a network", s.p.opts.Info.Name)
	}
	return dialLoopback(ctx, s.id, port)
}

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	err := s.beginOperation(ctx, "remove")
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return s.removeDataVolume(opts...)
	}
	if err != nil {
		return err
	}
	defer s.endOperation()
	return s.removeSandbox(atoll.ApplyRemoveOptions(opts...))
}

// removeSandbox removes the sandbox. The caller holds s.busy.
func (s *sandbox) removeSandbox(opts atoll.RemoveOptions) error {
	if st, _ := s.currentStatus(); st.State == atoll.StateRunning {
		s.endRun(func(st *atoll.Status) { st.State = atoll.StateStopped })
	}
	if err := s.sweepProcesses(); err != nil {
		return wrapError("remove", s.id, err)
	}
	s.removing.Store(true)
	defer s.removing.Store(false)
	s.place.unlinkVolumes()
	if opts.Volumes {
		err := s.p.volumes.Remove(s.place.Spec.Project, volume.DataName(s.id), nil)
		if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			return err
		}
	}
	s.stopTimers()
	s.p.eraseRecord(s)
	s.p.opts.Backend.Removed(s.id)
	s.markRemoved()
	return nil
}

// markRemoved removes the sandbox from the provider and publishes its removal. It holds both locks
// throughout: as soon as a caller gets ErrNotFound for the id, the name or a handle, it can use the
// id and the name for a new sandbox.
func (s *sandbox) markRemoved() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.p.deleteLocked(s)
	s.st.State, s.st.Ready, s.st.Address = atoll.StateRemoved, false, ""
	s.p.hub.Publish(s.st)
}

// removeDataVolume deletes the data volume that a removed sandbox left behind, if opts ask for it and
// no sandbox uses the volume.
func (s *sandbox) removeDataVolume(opts ...atoll.RemoveOption) error {
	if !atoll.ApplyRemoveOptions(opts...).Volumes {
		return nil
	}
	err := s.p.removeVolume(s.place.Spec.Project, volume.DataName(s.id), "")
	if k := atoll.KindOf(err); k == atoll.ErrNotExist || k == atoll.ErrConflict {
		return nil
	}
	return err
}

var (
	_ atoll.Sandbox       = (*sandbox)(nil)
	_ atoll.Filer         = (*sandbox)(nil)
	_ atoll.Dialer        = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
