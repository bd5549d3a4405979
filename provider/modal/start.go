package modal

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// Start implements atoll.Sandbox. Of all programs that start it at the same time one does,
// and the others wait for what comes of it.
func (s *sandbox) Start(ctx context.Context) error {
	return s.withLockedRecord(ctx, "start", func(r *record) error {
		switch {
		case r.State == atoll.StateRunning:
			return nil
		case r.State == atoll.StateCreating:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "its creation was interrupted, or goes on elsewhere: remove it")
		}
		starter, err := s.p.claimStart(ctx, r)
		if starter == "" || err != nil {
			return err
		}
		if err := s.startClaimed(ctx, r); err != nil {
			if undo := s.p.releaseStart(r, starter); undo != nil {
				s.p.opts.Log.Warn("start: undo", "sandbox", s.id, "err", undo) // a sweep does it
			}
			return err
		}
		s.p.sweeper.Rouse()
		return nil
	})
}

// startClaimed starts a sandbox that this program has taken to do so.
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
				return atoll.Errorf("start", s.id, atoll.ErrConflict, "it took so long that somebody else has started it")
			}
			n.markRunning(&began)
			return nil
		})
	})
	if err != nil {
		return errors.Join(err, runCleanup(func(ctx context.Context) error { return s.p.service.terminateInstance(ctx, began.Life) }))
	}
	return nil
}

// markRunning notes that a life has begun.
func (n *note) markRunning(with *note) {
	*n = note{
		Spec: n.Spec, Made: n.Made, Created: n.Created, Expires: n.Expires, Volume: n.Volume,
		State: atoll.StateRunning, Life: with.Life, Image: with.Image, Ports: with.Ports, Started: time.Now().UTC(),
	}
}

// claimStart writes down that this program is about to start a sandbox that does not run, and
// returns by which name. When somebody else is at it, it waits for that, and starter is ""
// if it runs then.
func (p *Provider) claimStart(ctx context.Context, r *record) (starter string, err error) {
	for {
		starter = atoll.NewID()
		err := runToEnd(ctx, func(ctx context.Context) error {
			return p.updateRecord(ctx, r, func(n *note) error {
				if n.State == atoll.StateRunning || time.Now().Before(n.Until) {
					return errDoneElsewhere
				}
				n.Starter, n.Until = starter, time.Now().Add(p.opts.leaseTTL).UTC()
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

// releaseStart undoes what a start may have begun, and take.
func (p *Provider) releaseStart(r *record, starter string) error {
	return runCleanup(func(ctx context.Context) error {
		if err := p.service.terminateNamed(ctx, p.opts.appName(r.note.Spec.Project), p.names.sandboxName(r.ID)); err != nil {
			return err
		}
		err := p.updateRecord(ctx, r, func(n *note) error {
			if n.Starter != starter {
				return errDoneElsewhere
			}
			n.Starter, n.Until = "", time.Time{}
			return nil
		})
		if errors.Is(err, errDoneElsewhere) || atoll.KindOf(err) == atoll.ErrNotFound {
			return nil
		}
		return err
	})
}

// leaseTTL is how long a creation, or a start, is thought to go on, unless it says that it
// does.
const leaseTTL = 30 * time.Second

// keepLease says from time to time that the sandbox is still being made, or started, until it
// is told to stop: building an image may take minutes.
func (p *Provider) keepLease(ctx context.Context, r record) (stop func()) {
	starter := r.note.Starter
	return guestproc.Every(ctx, p.opts.leaseTTL/3, func(ctx context.Context) {
		err := p.updateRecord(ctx, &r, func(n *note) error {
			if n.Starter != starter {
				return errDoneElsewhere
			}
			n.Until = time.Now().Add(p.opts.leaseTTL).UTC()
			return nil
		})
		if err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("it takes long, and that cannot be written down", "sandbox", r.ID, "err", err)
		}
	})
}
