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

// A spare is a keeper that was started before there is a sandbox for it: it
// waits for its job, in namespaces and a cgroup of its own, and so takes its
// start-up time off the way of the next Create. There is one at the most, also of
// those on their way. When its provider dies it finds its socket closed, and ends
// as if it had never been.
type spare struct {
	p *Provider

	mu      sync.Mutex
	ready   *readyKeeper // nil while there is none
	pending bool         // one is on its way
	closed  bool
	quit    chan struct{} // closed with it
	work    sync.WaitGroup
}

// A readyKeeper waits for its job in the cgroup at path. Until a record names
// that path, the mark reminds a sweep of it, should we die.
type readyKeeper struct {
	*spawned
	path string
	mark *statedir.Mark
}

// drop ends the keeper and removes what it has.
func (r *readyKeeper) drop() error {
	r.kill()
	err := cgroup.Open(cgroup.Root).Group(r.path).Remove()
	if err != nil {
		r.mark.Release() // a sweep tries again
		return err
	}
	return r.mark.Remove()
}

// take hands out the spare keeper, limited as asked, or nil if there is none.
func (s *spare) take(l cgroup.Limits) *readyKeeper {
	s.mu.Lock()
	r := s.ready
	s.ready = nil
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	err := r.alive()
	if err == nil {
		err = cgroup.Open(cgroup.Root).Group(r.path).Limit(l)
	}
	if err != nil {
		s.p.log.Warn("spare keeper", "err", errors.Join(err, r.drop()))
		return nil
	}
	return r
}

// spareDelay is how long after a sandbox was made the next keeper is started:
// the first command in that sandbox comes first.
const spareDelay = 200 * time.Millisecond

// refill starts another one, in the background and after a while. A spare that
// cannot be had is no error: Create then starts its keeper itself, and says
// what is wrong.
func (s *spare) refill(after time.Duration) {
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
		r, err := s.start(atoll.NewID())
		s.mu.Lock()
		s.pending = false
		if !s.closed {
			s.ready, r = r, nil
		}
		s.mu.Unlock()
		if r != nil { // too late
			err = r.drop()
		}
		if err != nil {
			s.p.log.Debug("spare keeper", "err", err)
		}
	})
}

func (s *spare) start(id string) (*readyKeeper, error) {
	if err := s.p.step("spare"); err != nil {
		return nil, err
	}
	helper, err := s.p.opts.Backend.Helper()
	if err != nil {
		return nil, err
	}
	r := &readyKeeper{path: s.p.cgroup(id)}
	if r.mark, err = s.p.dir.Mark(r.path); err != nil {
		return nil, err
	}
	group := cgroup.Open(cgroup.Root).Group(r.path)
	if err = group.Make(cgroup.Limits{}); err == nil {
		r.spawned, err = s.p.spawn(helper, r.path, nil, supervisor.Spare)
	}
	if err != nil {
		return nil, errors.Join(err, group.Remove(), r.mark.Remove())
	}
	return r, nil
}

// close ends the spare keeper and waits for it.
func (s *spare) close() {
	s.mu.Lock()
	s.closed = true
	close(s.quit)
	r := s.ready
	s.ready = nil
	s.mu.Unlock()
	if r != nil {
		if err := r.drop(); err != nil {
			s.p.log.Warn("spare keeper", "err", err)
		}
	}
	s.work.Wait()
}

// launchSpare is launch with the spare keeper. It is errNoKeeper if there is
// none that will do, which may turn out late.
func (p *Provider) launchSpare(ctx context.Context, rec *statedir.Record) error {
	r := p.spare.take(p.limits(rec))
	if r == nil {
		return errNoKeeper
	}
	if err := p.settle(rec, r.path); err != nil {
		return atoll.E("start", rec.Status.ID, diskKind(err), errors.Join(err, r.drop()))
	}
	if err := r.mark.Give(p.dir, rec.Status.ID); err != nil {
		p.log.Warn("spare keeper", "err", err)
	}
	return p.order(ctx, r.spawned, rec)
}

// begin starts a keeper for the sandbox that rec describes.
func (p *Provider) begin(ctx context.Context, helper string, held *os.File, rec *statedir.Record) (*spawned, error) {
	id := rec.Status.ID
	if err := p.step("run directory"); err != nil {
		return nil, err
	}
	if err := p.settle(rec, p.cgroup(id)); err != nil {
		return nil, atoll.E("start", id, diskKind(err), err)
	}
	if err := p.step("cgroup"); err != nil {
		return nil, err
	}
	group := p.group(rec)
	if err := group.Make(p.limits(rec)); err != nil {
		return nil, atoll.E("start", id, diskKind(err), err)
	}
	if err := p.step("process"); err != nil {
		return nil, errors.Join(err, group.Remove())
	}
	k, err := p.spawn(helper, rec.Cgroup, held)
	if err != nil {
		return nil, p.spawnError(ctx, id, errors.Join(err, group.Remove()))
	}
	return k, nil
}

// settle makes the sandbox's run directory. Before that, the record on disk says
// where it and the cgroup will be, so that whoever comes after a crash finds
// them.
func (p *Provider) settle(rec *statedir.Record, group string) error {
	before := rec.Run
	run := filepath.Join(p.opts.RunDir, rec.Status.ID)
	if rec.Run != run || rec.Cgroup != group {
		rec.Run, rec.Cgroup = run, group
		if err := p.dir.Write(rec); err != nil {
			return err
		}
	}
	if before != run { // made by one with another run directory
		if err := statedir.RemoveRun(before); err != nil {
			return err
		}
	}
	_, err := p.dir.MakeRun(p.opts.RunDir, rec.Status.ID)
	return err
}
