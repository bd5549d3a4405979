package remote

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Start implements atoll.Sandbox. If several programs start the sandbox at the same time, one
// does it, and the others wait for the result.
func (s *Sandbox[O]) Start(ctx context.Context) error {
	return s.WithLockedRecord(ctx, "start", func(r *Record[O]) error {
		switch r.State {
		case atoll.StateRunning:
			return nil
		case atoll.StateCreating:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "its creation was interrupted, or is still in progress: remove it")
		}
		if err := s.e.backend.RecordEnd(ctx, r); err != nil { // if a later step fails, the sandbox is stopped as before
			return err
		}
		starter, err := s.e.claimStart(ctx, r)
		if starter == "" || err != nil {
			return err
		}
		if err := s.e.startClaimed(ctx, r); err != nil {
			if undo := s.e.releaseStart(r, starter); undo != nil {
				s.e.Log.Warn("start: undo", "sandbox", s.id, "err", undo) // a sweep does it later
			}
			return err
		}
		s.e.Sweeper.Wake()
		return nil
	})
}

// claimStart records that this program starts the sandbox, and returns the random id of that
// start. If another program is starting it, claimStart waits, and returns "" if the sandbox
// runs then.
func (e *Engine[O]) claimStart(ctx context.Context, r *Record[O]) (starter string, err error) {
	for {
		starter = atoll.NewID()
		err := RunToEnd(ctx, func(ctx context.Context) error {
			return e.backend.Update(ctx, r, func(n *Note) error {
				now := time.Now()
				switch {
				case n.Removing:
					return atoll.E("start", r.ID, atoll.ErrNotFound, nil)
				case n.State == atoll.StateRunning || n.State == atoll.StateCreating || n.IsStarting(now):
					return ErrDoneElsewhere
				}
				n.Starter, n.LeaseExpires = starter, now.Add(e.LeaseTTL).UTC()
				return nil
			})
		})
		if err == nil || !errors.Is(err, ErrDoneElsewhere) {
			return starter, err
		}
		now, err := e.backend.Find(ctx, "start", r.ID, Latest)
		if err != nil {
			return "", err
		}
		switch *r = *now; r.State {
		case atoll.StateRunning:
			return "", nil
		case atoll.StateCreating: // another sandbox has the id now
			return "", atoll.E("start", r.ID, atoll.ErrNotFound, nil)
		}
		if r.Note.IsStarting(time.Now()) {
			if err := e.backend.AwaitChange(ctx, r); err != nil {
				return "", err
			}
			continue
		}
		if err := e.backend.RecordEnd(ctx, r); err != nil { // it has run and ended meanwhile
			return "", err
		}
	}
}

// startClaimed starts a sandbox whose start this program has claimed.
func (e *Engine[O]) startClaimed(ctx context.Context, r *Record[O]) error {
	if e.Step != nil {
		if err := e.Step("start"); err != nil {
			return err
		}
	}
	leased, stop := e.keepLease(ctx, r)
	defer stop()
	if err := e.launchSandbox(leased, r); err != nil {
		return leaseError(leased, "start", r.ID, err)
	}
	stop()
	began := r.Note
	err := RunToEnd(ctx, func(ctx context.Context) error {
		return e.backend.Update(ctx, r, func(n *Note) error {
			if n.Starter != began.Starter {
				return lostLeaseError("start", r.ID)
			}
			n.markRunning(&began)
			return nil
		})
	})
	if err != nil {
		r.Note.Run = began.Run
		e.Guests.Cancel(r.ID)
		return errors.Join(err, RunCleanup(func(ctx context.Context) error { return e.backend.EndRun(ctx, r) }))
	}
	return nil
}

// launchSandbox starts a new run of a stopped sandbox.
func (e *Engine[O]) launchSandbox(ctx context.Context, r *Record[O]) error {
	if r.Note.Volume {
		if err := e.backend.CheckDataVolume(ctx, r); err != nil {
			return err
		}
	}
	if err := e.dismissCaretaker(ctx, r); err != nil {
		return err
	}
	e.Guests.Cancel(r.ID) // the connection to the last run
	return e.backend.Launch(ctx, r)
}

// releaseStart undoes a start that has failed, and its claim, unless another program has claimed
// the start since.
func (e *Engine[O]) releaseStart(r *Record[O], starter string) error {
	return RunCleanup(func(ctx context.Context) error {
		now, err := e.backend.Find(ctx, "start", r.ID, Stored)
		if atoll.KindOf(err) == atoll.ErrNotFound || err == nil && now.Note.Starter != starter {
			return nil
		}
		if err != nil {
			return err
		}
		if err := e.backend.EndStrays(ctx, now); err != nil {
			return err
		}
		err = e.backend.Update(ctx, now, func(n *Note) error {
			if n.Starter != starter {
				return ErrDoneElsewhere
			}
			n.Starter, n.LeaseExpires = "", time.Time{}
			return nil
		})
		if errors.Is(err, ErrDoneElsewhere) || atoll.KindOf(err) == atoll.ErrNotFound {
			return nil
		}
		return err
	})
}
