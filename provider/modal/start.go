package modal

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// Start implements atoll.Sandbox. If several programs start the sandbox at the same time, one
// does it, and the others wait for the result.
func (s *sandbox) Start(ctx context.Context) error {
	return s.withLockedRecord(ctx, "start", func(r *record) error {
		switch {
		case r.State == atoll.StateRunning:
			return nil
		case r.State == atoll.StateCreating:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "its creation was interrupted, or is still in progress: remove it")
		}
		starter, err := s.p.claimStart(ctx, r)
		if starter == "" || err != nil {
			return err
		}
		if err := s.startClaimed(ctx, r); err != nil {
			if undo := s.p.releaseStart(r, starter); undo != nil {
				s.p.opts.Log.Warn("start: undo", "sandbox", s.id, "err", undo) // a sweep does it later
			}
			return err
		}
		s.p.sweeper.Rouse()
		return nil
	})
}

// startClaimed starts a sandbox whose start this program has claimed.
func (s *sandbox) startClaimed(ctx context.Context, r *record) error {
	if s.p.opts.step != nil {
		if err := s.p.opts.step("life"); err != nil {
			return err
		}
	}
	if err := s.p.checkDataVolume(ctx, r); err != nil {
		return err
	}
	stop := s.p.keepLease(ctx, *r)
	err := s.p.launchSandbox(ctx, r)
	stop()
	if err != nil {
		return err
	}
	began := r.note
	err = runToEnd(ctx, func(ctx context.Context) error {
		return s.p.updateRecord(ctx, r, func(n *note) error {
			if n.Starter != began.Starter {
				return atoll.Errorf("start", s.id, atoll.ErrConflict, "the start took too long: another program has started it")
			}
			n.markRunning(&began)
			return nil
		})
	})
	if err != nil {
		return errors.Join(err, runCleanup(func(ctx context.Context) error { return s.p.service.terminateInstance(ctx, began.Instance) }))
	}
	return nil
}

// markRunning records that a run of the sandbox has begun.
func (n *note) markRunning(with *note) {
	*n = note{
		Spec: n.Spec, CreationID: n.CreationID, Created: n.Created, Expires: n.Expires, Volume: n.Volume,
		State: atoll.StateRunning, Instance: with.Instance, Image: with.Image, Ports: with.Ports, Started: time.Now().UTC(),
	}
}

// claimStart records that this program starts the sandbox, and returns the random id of that
// start. If another program is starting it, claimStart waits, and returns "" if the sandbox
// runs then.
func (p *Provider) claimStart(ctx context.Context, r *record) (starter string, err error) {
	for {
		starter = atoll.NewID()
		err := runToEnd(ctx, func(ctx context.Context) error {
			return p.updateRecord(ctx, r, func(n *note) error {
				if n.State == atoll.StateRunning || time.Now().Before(n.LeaseExpires) {
					return errDoneElsewhere
				}
				n.Starter, n.LeaseExpires = starter, time.Now().Add(p.opts.leaseTTL).UTC()
				return nil
			})
		})
		if err == nil || !errors.Is(err, errDoneElsewhere) {
			return starter, err
		}
		now, err := p.findRecord(ctx, "start", r.ID)
		if err != nil {
			return "", err
		}
		if *r = *now; r.State == atoll.StateRunning {
			return "", nil
		}
		select {
		case <-time.After(p.opts.leaseTTL / 30):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// releaseStart undoes a start that has failed, and its claim.
func (p *Provider) releaseStart(r *record, starter string) error {
	return runCleanup(func(ctx context.Context) error {
		if err := p.service.terminateNamed(ctx, p.opts.appName(r.note.Spec.Project), p.names.sandboxName(r.ID)); err != nil {
			return err
		}
		err := p.updateRecord(ctx, r, func(n *note) error {
			if n.Starter != starter {
				return errDoneElsewhere
			}
			n.Starter, n.LeaseExpires = "", time.Time{}
			return nil
		})
		if errors.Is(err, errDoneElsewhere) || atoll.KindOf(err) == atoll.ErrNotFound {
			return nil
		}
		return err
	})
}

// leaseTTL is the time after which a creation or a start counts as abandoned, unless keepLease
// renews its lease.
const leaseTTL = 30 * time.Second

// keepLease renews the lease of a creation or a start until stop is called, because building an
// image may take minutes.
func (p *Provider) keepLease(ctx context.Context, r record) (stop func()) {
	starter := r.note.Starter
	return guestproc.Every(ctx, p.opts.leaseTTL/3, func(ctx context.Context) {
		err := p.updateRecord(ctx, &r, func(n *note) error {
			if n.Starter != starter {
				return errDoneElsewhere
			}
			n.LeaseExpires = time.Now().Add(p.opts.leaseTTL).UTC()
			return nil
		})
		if err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("cannot renew the lease of a creation or a start", "sandbox", r.ID, "err", err)
		}
	})
}
