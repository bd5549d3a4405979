package supervised

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A spareSlot holds at most one supervisor that was started before there is a sandbox for
// it, including one that is just being started. It waits for its job in namespaces and a
// cgroup of its own, which saves the next Create its start-up time. When its provider dies,
// it finds its socket closed, and ends without a trace.
type spareSlot struct {
	p *Provider

	mu      sync.Mutex
	ready   *spareSupervisor // nil while there is none
	pending bool             // one is being started
	closed  bool
	quit    chan struct{} // closed by close
	work    sync.WaitGroup
}

// A spareSupervisor waits for its job in the cgroup at path. Until a record names that
// path, the mark tells a sweep about it, in case this process dies.
type spareSupervisor struct {
	*supervisorProcess
	path string
	mark *statedir.Mark
}

// killAndRemove ends the supervisor and removes its cgroup and its mark.
func (r *spareSupervisor) killAndRemove() error {
	r.killAndReap()
	err := cgroup.Open(cgroup.Root).Group(r.path).Remove()
	if err != nil {
		r.mark.Release() // a sweep tries again
		return err
	}
	return r.mark.Remove()
}

// takeSupervisor returns the spare supervisor with the limits l applied, or nil if there is
// none.
func (s *spareSlot) takeSupervisor(l cgroup.Limits) *spareSupervisor {
	s.mu.Lock()
	r := s.ready
	s.ready = nil
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	err := r.checkAlive()
	if err == nil {
		err = cgroup.Open(cgroup.Root).Group(r.path).Limit(l)
	}
	if err != nil {
		s.p.log.Warn("spare supervisor", "err", errors.Join(err, r.killAndRemove()))
		return nil
	}
	return r
}

// spareDelay is the delay between a sandbox's start and that of the next spare supervisor:
// the first command in the sandbox comes first.
const spareDelay = 200 * time.Millisecond

// scheduleRefill starts another spare supervisor in the background after a delay. A failure
// is only logged: Create then starts its own supervisor, and reports the cause.
func (s *spareSlot) scheduleRefill(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.p.opts.Spare || s.closed || s.ready != nil || s.pending {
		return
	}
	s.pending = true
	s.work.Go(func() {
		select {
		case <-s.quit:
			return
		case <-time.After(after):
		}
		r, err := s.startSupervisor(atoll.NewID())
		s.mu.Lock()
		s.pending = false
		if !s.closed {
			s.ready, r = r, nil
		}
		s.mu.Unlock()
		if r != nil { // too late
			err = r.killAndRemove()
		}
		if err != nil {
			s.p.log.Debug("spare supervisor", "err", err)
		}
	})
}

// startSupervisor starts a spare supervisor in the cgroup named after id.
func (s *spareSlot) startSupervisor(id string) (*spareSupervisor, error) {
	if err := s.p.checkStep("spare"); err != nil {
		return nil, err
	}
	return s.p.startSpare(id, cgroup.Limits{})
}

// startSpare starts a supervisor without a job in the cgroup named after id.
func (p *Provider) startSpare(id string, l cgroup.Limits) (*spareSupervisor, error) {
	helper, err := p.opts.Backend.Helper()
	if err != nil {
		return nil, err
	}
	r := &spareSupervisor{path: p.cgroupPath(id)}
	if r.mark, err = p.dir.Mark(r.path, filepath.Join(p.opts.RunDir, id)); err != nil {
		return nil, err
	}
	group := cgroup.Open(cgroup.Root).Group(r.path)
	if err = group.Make(l); err == nil {
		r.supervisorProcess, err = p.spawnSupervisor(helper, r.path, nil, supervisor.Spare)
	}
	if err != nil {
		return nil, errors.Join(err, group.Remove(), r.mark.Remove())
	}
	return r, nil
}

// close ends the spare supervisor and waits for its end.
func (s *spareSlot) close() {
	s.mu.Lock()
	s.closed = true
	close(s.quit)
	r := s.ready
	s.ready = nil
	s.mu.Unlock()
	if r != nil {
		if err := r.killAndRemove(); err != nil {
			s.p.log.Warn("spare supervisor", "err", err)
		}
	}
	s.work.Wait()
}

// launchSpare is launchSupervisor with the spare supervisor. It returns errNoSupervisor if
// there is no spare one, or if it turns out to have died.
func (p *Provider) launchSpare(ctx context.Context, rec *statedir.Record) error {
	r := p.spare.takeSupervisor(p.cgroupLimits(rec))
	if r == nil {
		return errNoSupervisor
	}
	if err := p.prepareRunDir(rec, r.path); err != nil {
		return atoll.E("start", rec.Status.ID, diskKind(err), errors.Join(err, r.killAndRemove()))
	}
	if err := r.mark.AssignTo(p.dir, rec.Status.ID); err != nil {
		p.log.Warn("spare supervisor", "err", err)
	}
	return p.runJob(ctx, r.supervisorProcess, rec)
}

// startSupervisor starts a supervisor for the sandbox that rec describes.
func (p *Provider) startSupervisor(ctx context.Context, helper string, held *os.File, rec *statedir.Record) (*supervisorProcess, error) {
	id := rec.Status.ID
	if err := p.checkStep("run directory"); err != nil {
		return nil, err
	}
	if err := p.prepareRunDir(rec, p.cgroupPath(id)); err != nil {
		return nil, atoll.E("start", id, diskKind(err), err)
	}
	if err := p.checkStep("cgroup"); err != nil {
		return nil, err
	}
	group := p.sandboxCgroup(rec)
	if err := group.Make(p.cgroupLimits(rec)); err != nil {
		return nil, atoll.E("start", id, diskKind(err), err)
	}
	if err := p.checkStep("process"); err != nil {
		return nil, errors.Join(err, group.Remove())
	}
	proc, err := p.spawnSupervisor(helper, rec.Cgroup, held)
	if err != nil {
		return nil, p.spawnError(ctx, id, errors.Join(err, group.Remove()))
	}
	return proc, nil
}

// prepareRunDir makes the sandbox's run directory. Before that, it records where the run
// directory and the cgroup will be, so that a sweep finds them after a crash.
func (p *Provider) prepareRunDir(rec *statedir.Record, group string) error {
	before := rec.Run
	run := filepath.Join(p.opts.RunDir, rec.Status.ID)
	if rec.Run != run || rec.Cgroup != group {
		rec.Run, rec.Cgroup = run, group
		if err := p.dir.Write(rec); err != nil {
			return err
		}
	}
	if before != run { // a provider with another RunDir made it
		if err := statedir.RemoveRun(before); err != nil {
			return err
		}
	}
	_, err := p.dir.MakeRun(p.opts.RunDir, rec.Status.ID)
	return err
}
