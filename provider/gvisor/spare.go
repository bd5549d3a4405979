//go:build linux

package gvisor

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/statedir"
)

// A spare is a keeper that was started before there is a sandbox for it: it
// waits for its job, in namespaces and a cgroup of its own, and so takes its
// start-up time, a fifth of a sandbox's, off the way of the next Create. There
// is one at the most. When its provider dies it finds its socket closed, and
// ends as if it had never been.
type spare struct {
	p *Provider

	mu     sync.Mutex
	keeper *spawned // nil while there is none
	path   string   // of its cgroup
	closed bool
	quit   chan struct{} // closed with it
	work   sync.WaitGroup
}

// take hands out the spare keeper and the path of its cgroup, limited as asked,
// or nil if there is none.
func (s *spare) take(l cgroup.Limits) (*spawned, string) {
	s.mu.Lock()
	k, path := s.keeper, s.path
	s.keeper = nil
	s.mu.Unlock()
	if k == nil {
		return nil, ""
	}
	if err := cgroup.Open(cgroup.Root).Group(path).Limit(l); err != nil {
		s.p.log.Warn("spare keeper", "err", err)
		k.kill()
		return nil, ""
	}
	return k, path
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
	if !s.p.opts.Spare || s.closed || s.keeper != nil {
		return
	}
	s.work.Go(func() {
		select {
		case <-s.quit:
			return
		case <-time.After(after):
		}
		path := s.p.cgroup(atoll.NewID())
		k, err := s.start(path)
		s.mu.Lock()
		if err == nil && !s.closed && s.keeper == nil {
			s.keeper, s.path = k, path
			k = nil
		}
		s.mu.Unlock()
		if err != nil {
			s.p.log.Debug("spare keeper", "err", err)
		} else if k != nil { // too late, or one too many
			k.kill()
		}
	})
}

func (s *spare) start(path string) (*spawned, error) {
	helper, err := s.p.helper()
	if err != nil {
		return nil, err
	}
	group := cgroup.Open(cgroup.Root).Group(path)
	if err := group.Make(cgroup.Limits{}); err != nil {
		return nil, err
	}
	k, err := spawn(helper, path, nil)
	if err != nil {
		return nil, errors.Join(err, group.Remove())
	}
	return k, nil
}

// close ends the spare keeper and waits for it.
func (s *spare) close() {
	s.mu.Lock()
	s.closed = true
	close(s.quit)
	k := s.keeper
	s.keeper = nil
	s.mu.Unlock()
	if k != nil {
		k.kill()
	}
	s.work.Wait()
}

// begin returns a keeper for the sandbox that rec describes: the spare one, if
// there is one and it will do, else a new one. rec then names its cgroup.
func (p *Provider) begin(ctx context.Context, helper string, held *os.File, rec *statedir.Record) (*spawned, error) {
	l := limits(rec.Status.Spec.Resources.WithDefaults())
	if held == nil { // an image's lock is inherited when the keeper is started
		if k, path := p.spare.take(l); k != nil {
			rec.Cgroup = path
			return k, nil
		}
	}
	rec.Cgroup = p.cgroup(rec.Status.ID)
	group := p.group(rec)
	if err := group.Make(l); err != nil {
		return nil, atoll.E("start", rec.Status.ID, diskKind(err), err)
	}
	k, err := spawn(helper, rec.Cgroup, held)
	if err != nil {
		return nil, p.spawnError(ctx, rec.Status.ID, errors.Join(err, group.Remove()))
	}
	return k, nil
}
