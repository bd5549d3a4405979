package supervised

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/files"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A sandbox is a handle: it asks the supervisor of a running sandbox, and reads the state
// of a stopped one from disk.
type sandbox struct {
	p  *Provider
	id string
}

// ID implements atoll.Sandbox.
func (s *sandbox) ID() string { return s.id }

// Status implements atoll.Sandbox.
func (s *sandbox) Status(context.Context) (atoll.Status, error) {
	rec, err := s.p.readRecord("status", s.id)
	if err != nil {
		return atoll.Status{}, err
	}
	return rec.Status, nil
}

// Start implements atoll.Sandbox.
func (s *sandbox) Start(ctx context.Context) error {
	return s.p.withLock(ctx, "start", s.id, func(rec *statedir.Record) error {
		if rec.Damaged {
			return atoll.Errorf("start", s.id, atoll.ErrInternal, "%s", rec.Status.Reason)
		}
		switch rec.Status.State {
		case atoll.StateRunning:
			return nil
		case atoll.StatePaused:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "sandbox is paused: resume it")
		case atoll.StateCreating:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "its creation was interrupted: remove it")
		}
		if err := s.p.adaptLimits(rec); err != nil {
			return err
		}
		// A supervisor lingers for a while after its main process has ended.
		stop := func(ctx context.Context, sb atoll.Sandbox) error { return sb.Stop(ctx, 0) }
		if err := s.p.endSupervisor(ctx, rec, shutdown{call: stop, force: true}); err != nil {
			return err
		}
		if err := s.p.sandboxCgroup(rec).Remove(); err != nil { // from the previous run
			return atoll.E("start", s.id, atoll.ErrInternal, err)
		}
		if err := s.p.launchSupervisor(ctx, rec); err != nil {
			return err
		}
		s.p.events.publishChanges(s.id)
		return nil
	})
}

// adaptLimits adapts what cgroups do for the sandbox to those of this process, which may differ from those of the process that made it. It
// refuses a sandbox whose limits it cannot enforce.
func (p *Provider) adaptLimits(rec *statedir.Record) error {
	caps, now := &rec.Status.Caps, p.opts.Info.Caps
	if rec.Cgroup == "" && p.opts.Cgroups == "" || caps.MemoryLimit == now.MemoryLimit && caps.CPULimit == now.CPULimit {
		return nil
	}
	if err := p.opts.Backend.Supports(&atoll.Spec{Resources: rec.Status.Spec.Resources}); err != nil {
		return atoll.E("start", rec.Status.ID, atoll.KindOf(err), err)
	}
	caps.MemoryLimit, caps.CPULimit, caps.Pause, caps.Snapshot = now.MemoryLimit, now.CPULimit, now.Pause, now.Snapshot
	return nil
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	defer s.p.events.publishChanges(s.id)
	defer s.p.sweeper.Wake()
	return s.p.withLock(ctx, "stop", s.id, func(rec *statedir.Record) error {
		stop := func(ctx context.Context, sb atoll.Sandbox) error { return sb.Stop(ctx, grace) }
		return s.p.endSupervisor(ctx, rec, shutdown{call: stop})
	})
}

// Remove implements atoll.Sandbox. Once the removal has begun, it ignores the end of ctx.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	defer s.p.events.publishChanges(s.id) // even if only to report a failure
	options := atoll.ApplyRemoveOptions(opts...)
	err := s.p.withLock(ctx, "remove", s.id, func(rec *statedir.Record) error {
		remove := func(ctx context.Context, sb atoll.Sandbox) error { return sb.Remove(ctx, opts...) }
		if err := s.p.endSupervisor(ctx, rec, shutdown{call: remove, force: true, removal: &options}); err != nil {
			return err
		}
		return s.p.deleteSandbox(rec, options)
	})
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return s.removeRemains(ctx, opts...)
	}
	return err
}

// removeRemains finishes the removal of a sandbox that has gone, or of which only the
// record is left: it can still delete a data volume that an earlier removal retained.
func (s *sandbox) removeRemains(ctx context.Context, opts ...atoll.RemoveOption) error {
	if !s.p.clearRemains(ctx, s.id) && ctx.Err() != nil {
		return ctx.Err()
	}
	if !atoll.ApplyRemoveOptions(opts...).Volumes {
		return nil
	}
	return s.p.removeDataVolumes(s.id)
}

// deleteSandbox removes everything that a sandbox which does not run has on the machine.
func (p *Provider) deleteSandbox(rec *statedir.Record, opts atoll.RemoveOptions) error {
	// First the record says so: a Create with the same id or name waits for a sandbox that is being
	// removed, and soon gives up on one that is being made.
	if err := p.dir.BeginRemoval(rec, opts); err != nil {
		return atoll.E("remove", rec.Status.ID, atoll.ErrInternal, err)
	}
	// Then the cgroup goes: while it cannot be removed, some process of the sandbox still
	// runs, and only the record reminds a sweep of it. Whatever the record says,
	// there may be a cgroup named after the sandbox's id, and a run directory.
	rec.Run = cmp.Or(rec.Run, filepath.Join(p.opts.RunDir, rec.Status.ID))
	own := cgroup.Open(cgroup.Root).Group(p.cgroupPath(rec.Status.ID))
	err := errors.Join(p.sandboxCgroup(rec).Remove(), own.Remove())
	if err == nil {
		err = p.retryAsOwner(func() error { return p.dir.Delete(rec, opts) })
	}
	if err != nil {
		return atoll.E("remove", rec.Status.ID, atoll.ErrInternal, err)
	}
	p.dir.TidyRun(filepath.Dir(rec.Run))
	p.dropClient(rec.Status.ID)
	p.events.publishChanges(rec.Status.ID)
	return nil
}

// A shutdown describes how a supervisor should end its sandbox.
type shutdown struct {
	call    func(context.Context, atoll.Sandbox) error
	force   bool                 // nothing is lost if the supervisor is killed
	removal *atoll.RemoveOptions // set for a removal, which ignores the end of ctx once it has begun
}

// endSupervisor asks the sandbox's supervisor, if there is one, to end the sandbox, and
// waits until the supervisor has gone. With force, it kills a supervisor that fails, does
// not answer or does not go. Without force, it kills only a supervisor that has saved the
// sandbox's files; in all other cases it returns an error and the sandbox keeps running,
// because its files would be lost. The caller holds the sandbox's lock.
func (p *Provider) endSupervisor(ctx context.Context, rec *statedir.Record, end shutdown) error {
	id := rec.Status.ID
	if !p.dir.Alive(id) {
		return nil
	}
	if identity, err := p.dir.Supervisor(id); err == nil {
		rec.Supervisor = identity // the record names it only once the sandbox runs
	}
	sb := p.clientFor(id).remoteSandbox()
	err := p.pingSupervisor(ctx, sb)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if end.removal != nil {
		ctx = context.WithoutCancel(ctx)
	}
	switch {
	case err != nil:
		err = atoll.Errorf("stop", id, atoll.ErrUnavailable,
			"supervisor process %d does not answer, and only it can save the files that are not on volumes: try again, or kill that process (%w)", rec.Supervisor.PID, err)
	case end.force:
		bounded, cancel := context.WithTimeout(ctx, forceTimeout)
		defer cancel()
		err = end.call(bounded, sb)
	default:
		err = end.call(ctx, sb) // saving has no time limit
	}
	hangs := errors.Is(err, context.DeadlineExceeded)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !end.force {
		return p.explainRefusal(ctx, rec, err)
	}
	if err != nil {
		p.log.Debug("supervisor", "sandbox", id, "err", err)
	}
	if !hangs && p.awaitGoneWithin(ctx, id, supervisorGrace) {
		return nil
	}
	p.log.Warn("killing a supervisor that does not end", "sandbox", id, "pid", rec.Supervisor.PID)
	if end.removal != nil {
		if err := p.dir.BeginRemoval(rec, *end.removal); err != nil {
			return atoll.E("remove", id, atoll.ErrInternal, err)
		}
	}
	return p.killSupervisor(ctx, rec)
}

// killSupervisor kills the sandbox's supervisor and waits for its end.
func (p *Provider) killSupervisor(ctx context.Context, rec *statedir.Record) error {
	id := rec.Status.ID
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), supervisorGrace)
	defer cancel()
	if err := rec.Supervisor.Kill(bounded); err != nil {
		return atoll.E("stop", id, atoll.ErrInternal, err)
	}
	if !p.awaitGoneWithin(ctx, id, supervisorGrace) {
		return atoll.Errorf("stop", id, atoll.ErrInternal, "supervisor process %d cannot be killed", rec.Supervisor.PID)
	}
	return nil
}

// explainRefusal interprets err of a supervisor that did not confirm that it ended the
// sandbox: it is nil if the supervisor died after it had done so, and an error if it still
// runs, or died before.
func (p *Provider) explainRefusal(ctx context.Context, rec *statedir.Record, err error) error {
	id := rec.Status.ID
	if atoll.KindOf(err) != atoll.ErrUnavailable || !p.awaitGoneWithin(ctx, id, time.Second) {
		return err
	}
	now, readErr := p.readRecord("stop", id)
	if readErr != nil {
		return readErr
	}
	if now.Status.State == atoll.StateFailed {
		return atoll.Errorf("stop", id, atoll.ErrInternal, "the sandbox failed before its files were saved: %s", now.Status.Reason)
	}
	return nil
}

// answerTimeout is the time within which a supervisor must answer a question that it
// answers from memory; a slower one hangs.
const answerTimeout = 10 * time.Second

// forceTimeout is the time within which a supervisor must end a sandbox whose files need
// not be saved.
const forceTimeout = 15 * time.Second

// pingSupervisor returns an error if the sandbox's supervisor does not answer in time.
func (p *Provider) pingSupervisor(ctx context.Context, sb atoll.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := sb.Status(ctx)
	return err
}

// awaitGone waits until the sandbox has no supervisor, or ctx ends. It reports whether the
// supervisor has gone.
func (p *Provider) awaitGone(ctx context.Context, id string) bool {
	for delay := time.Millisecond; p.dir.Alive(id); delay = min(2*delay, 20*time.Millisecond) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(delay):
		}
	}
	return true
}

// awaitGoneWithin is awaitGone with a time limit in place of the end of ctx.
func (p *Provider) awaitGoneWithin(ctx context.Context, id string, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	return p.awaitGone(ctx, id)
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if err := cmd.CheckCaps(s.p.opts.Info.Name, s.p.opts.Info.Caps); err != nil {
		return nil, err
	}
	p, err := s.remoteSandbox().Exec(ctx, cmd)
	return s.wrapProcess(p), s.explainError(ctx, "exec", err)
}

// Process implements atoll.Sandbox.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	if p := s.endedProcess(id); p != nil {
		return p, nil
	}
	p, err := s.remoteSandbox().Process(ctx, id)
	if err = s.explainError(ctx, "process", err); atoll.KindOf(err) == atoll.ErrStopped {
		if p := s.endedProcess(id); p != nil { // the sandbox has just stopped
			return p, nil
		}
	}
	return s.wrapProcess(p), err
}

// A process is a process that the supervisor knows; when the supervisor has gone, only the
// ended main process is left.
type process struct {
	atoll.ProcessLayer
	s *sandbox
}

// wrapProcess returns p with errors that say what happened to its sandbox; nil if p is nil.
func (s *sandbox) wrapProcess(p atoll.Process) atoll.Process {
	if p == nil {
		return nil
	}
	return &process{atoll.ProcessLayer{Process: p}, s}
}

// Wait implements atoll.Process.
func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	exit, err := p.ProcessLayer.Wait(ctx)
	if err = p.s.explainError(ctx, "wait", err); atoll.KindOf(err) == atoll.ErrStopped {
		if ended := p.s.endedProcess(p.ID()); ended != nil {
			return ended.Wait(ctx)
		}
	}
	return exit, err
}

// Signal implements atoll.Process.
func (p *process) Signal(ctx context.Context, sig atoll.Signal) error {
	return p.s.explainError(ctx, "signal", p.ProcessLayer.Signal(ctx, sig))
}

// Attach implements atoll.Process.
func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	if ended := p.s.endedProcess(p.ID()); ended != nil {
		return ended.Attach(ctx, a)
	}
	return p.s.explainError(ctx, "attach", p.ProcessLayer.Attach(ctx, a))
}

// Resize implements atoll.Resizer.
func (p *process) Resize(ctx context.Context, size atoll.Size) error {
	return p.s.explainError(ctx, "resize", atoll.Resize(ctx, p.Process, size))
}

// Processes implements atoll.ProcessLister.
func (s *sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	list, err := atoll.Processes(ctx, s.remoteSandbox())
	if err = s.explainError(ctx, "processes", err); atoll.KindOf(err) == atoll.ErrStopped {
		if p, st := s.endedMain(); p != nil {
			return []atoll.ProcessStatus{st}, nil
		}
	}
	return list, err
}

// Pause implements atoll.Pauser.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.explainError(ctx, "pause", atoll.Pause(ctx, s.remoteSandbox()))
}

// Resume implements atoll.Pauser.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.explainError(ctx, "resume", atoll.Resume(ctx, s.remoteSandbox()))
}

// Extend implements atoll.Extender: the supervisor of a running sandbox watches its expiry.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	defer s.p.sweeper.Wake()
	return s.p.withLock(ctx, "extend", s.id, func(rec *statedir.Record) error {
		if s.p.dir.Alive(s.id) {
			return atoll.Extend(ctx, s.remoteSandbox(), ttl)
		}
		st, err := rec.Status.Extended(ttl, time.Now())
		if err != nil {
			return err
		}
		rec.Status = st
		if err := s.p.dir.Write(rec); err != nil {
			return atoll.E("extend", s.id, atoll.KindOf(err), err)
		}
		return nil
	})
}

// UpdateNetwork implements atoll.NetworkUpdater.
func (s *sandbox) UpdateNetwork(ctx context.Context, change atoll.NetworkChange) error {
	return s.p.withLock(ctx, "network", s.id, func(rec *statedir.Record) error {
		if s.p.dir.Alive(s.id) {
			return atoll.UpdateNetwork(ctx, s.remoteSandbox(), change)
		}
		st, err := rec.Status.WithNetwork(change)
		if err != nil {
			return err
		}
		if _, err := egress.New(st.Spec.Network, st.Spec.Secrets); err != nil {
			return atoll.E("network", s.id, atoll.ErrInvalid, err)
		}
		rec.Status = st
		if err := s.p.dir.Write(rec); err != nil {
			return atoll.E("network", s.id, atoll.KindOf(err), err)
		}
		return nil
	})
}

// Usage implements atoll.Meter.
func (s *sandbox) Usage(ctx context.Context) (atoll.Usage, error) {
	u, err := atoll.UsageOf(ctx, s.remoteSandbox())
	return u, s.explainError(ctx, "usage", err)
}

// Dial implements atoll.Dialer.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := atoll.Dial(ctx, s.remoteSandbox(), port)
	return conn, s.explainError(ctx, "dial", err)
}

// Files implements atoll.Filer.
func (s *sandbox) Files() atoll.FS {
	return lazyfs.TrackUse(files.New(s.fileView), func() (end func()) { return s.p.dir.Using(s.id) })
}

// remoteSandbox returns the sandbox as its supervisor serves it.
func (s *sandbox) remoteSandbox() atoll.Sandbox { return s.p.clientFor(s.id).remoteSandbox() }

// disconnectGrace is the time that a supervisor which closed a connection gets to end.
const disconnectGrace = 2 * time.Second

// explainError replaces the error of a supervisor that cannot be reached by its cause: the
// sandbox is stopped, has failed, or was removed. It returns all other errors unchanged.
func (s *sandbox) explainError(ctx context.Context, op string, err error) error {
	if k := atoll.KindOf(err); err == nil || k != atoll.ErrUnavailable && k != atoll.ErrNotFound || ctx.Err() != nil {
		return err
	}
	// A dying supervisor closes its connections a moment before it releases its lock.
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isConnCut(err) {
		_ = s.p.awaitGoneWithin(ctx, s.id, disconnectGrace)
	}
	rec, readErr := s.p.readRecord(op, s.id)
	switch {
	case readErr != nil:
		return readErr
	case rec.Status.State == atoll.StateFailed:
		return atoll.Errorf(op, s.id, atoll.ErrStopped, "sandbox has failed: %s", rec.Status.Reason)
	case !isLive(rec.Status.State):
		return atoll.E(op, s.id, atoll.ErrStopped, nil)
	}
	return err
}

// fileView returns the current composition of the sandbox's files: volumes and other mounts
// are accessed directly, all else through its supervisor, if it has one.
func (s *sandbox) fileView() (files.View, error) {
	rec, err := s.p.readRecord("files", s.id)
	if err != nil {
		return files.View{}, err
	}
	spec := &rec.Status.Spec
	v := files.View{Workdir: spec.Workdir, Root: os.Geteuid(), UID: -1, GID: -1}
	running, plain := isLive(rec.Status.State), userdb.IsRoot(cmp.Or(spec.User, rec.User))
	v.Inside = func(context.Context) (atoll.FS, error) {
		if !running && !rec.Status.Caps.Volumes {
			return nil, atoll.E("files", s.id, atoll.ErrStopped, nil)
		}
		if !running {
			return nil, atoll.Errorf("files", s.id, atoll.ErrStopped, "sandbox is stopped: only its work directory and volumes can be reached")
		}
		return atoll.Files(s.remoteSandbox()), nil
	}
	if running && !plain {
		return v, nil // only the sandbox itself knows what the user may do
	}
	if rec.Status.State == atoll.StateRunning {
		v.Live = atoll.Files(s.remoteSandbox())
	}
	if !plain {
		v.UID, v.GID = volumeOwner(s.p.dir.Volume(spec.Project, statedir.DataVolume(s.id)))
	}
	for _, m := range s.p.jobMounts(&rec.Status) {
		v.Mounts = append(v.Mounts, files.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return v, nil
}

var (
	_ atoll.Sandbox        = (*sandbox)(nil)
	_ atoll.Filer          = (*sandbox)(nil)
	_ atoll.Dialer         = (*sandbox)(nil)
	_ atoll.Pauser         = (*sandbox)(nil)
	_ atoll.Extender       = (*sandbox)(nil)
	_ atoll.Snapshotter    = (*sandbox)(nil)
	_ atoll.Meter          = (*sandbox)(nil)
	_ atoll.ProcessLister  = (*sandbox)(nil)
	_ atoll.Refuser        = (*sandbox)(nil)
	_ atoll.NetworkLogger  = (*sandbox)(nil)
	_ atoll.NetworkUpdater = (*sandbox)(nil)
)
