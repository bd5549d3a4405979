package remote

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// sweepSandboxes removes expired sandboxes and what dead programs have left. Every program that
// shares the service sweeps; if two do the same work, the second finds it done. It returns the
// time of the next sweep.
func (e *Engine[O]) sweepSandboxes(ctx context.Context) (due time.Time) {
	records, due, err := e.backend.Survey(ctx)
	if err != nil && ctx.Err() == nil {
		e.Log.Warn("sweep", "err", err)
	}
	for _, r := range records {
		t := r.DueTime()
		if t.IsZero() || time.Now().Before(t) {
			due = sweeper.Earlier(due, t)
			continue
		}
		if err := e.removeExpired(ctx, r.ID); err != nil && ctx.Err() == nil {
			e.Log.Warn("sweep", "sandbox", r.ID, "err", err)
			due = sweeper.Earlier(due, time.Now().Add(time.Second))
		}
	}
	return due
}

// removeExpired removes a sandbox with its data volume, if it still is expired: another program
// may have started or extended it. If a program died while it started the sandbox,
// removeExpired only undoes that start.
func (e *Engine[O]) removeExpired(ctx context.Context, id string) error {
	release, err := e.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r, err := e.backend.Find(ctx, "remove", id, Latest)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if t := r.DueTime(); t.IsZero() || time.Now().Before(t) {
		return nil
	}
	if r.Note.Starter != "" && !r.Note.Removing {
		starter, err := e.adoptStart(ctx, r)
		if starter == "" || err != nil {
			return err
		}
		return e.releaseStart(r, starter)
	}
	if !r.Note.Removing {
		err := e.markRemoving(ctx, r)
		if errors.Is(err, ErrDoneElsewhere) || atoll.KindOf(err) == atoll.ErrNotFound {
			return nil
		}
		if err != nil {
			return err
		}
	}
	if r.Note.State == atoll.StateCreating {
		if err := e.dropSandbox(ctx, r); err != nil { // its data volume may belong to an earlier sandbox with its id
			return err
		}
		// Without the record, no later sweep finds the volumes.
		return RunCleanup(func(ctx context.Context) error { return e.backend.DropVolumesOf(ctx, r) })
	}
	if err := e.clearSandbox(ctx, r); err != nil {
		return err
	}
	if err := e.backend.DropDataVolume(ctx, id, r); err != nil { // before the record, by which a later sweep finds it
		return err
	}
	return e.backend.Delete(ctx, r)
}

// adoptStart claims an abandoned start, which keeps its program from continuing it, and returns
// the random id of the claim; "" if another program has claimed it, or removed the sandbox.
func (e *Engine[O]) adoptStart(ctx context.Context, r *Record[O]) (starter string, err error) {
	was, starter := r.Note.Starter, atoll.NewID()
	err = e.backend.Update(ctx, r, func(n *Note) error {
		now := time.Now()
		if n.Starter != was || n.IsStarting(now) || n.Removing {
			return ErrDoneElsewhere
		}
		n.Starter, n.LeaseExpires = starter, now.Add(e.LeaseTTL).UTC()
		return nil
	})
	if errors.Is(err, ErrDoneElsewhere) || atoll.KindOf(err) == atoll.ErrNotFound {
		return "", nil
	}
	return starter, err
}

// markRemoving records that an expired sandbox is being removed, which keeps other programs from
// starting or extending it. Errors: ErrDoneElsewhere if the note has changed since r was read.
func (e *Engine[O]) markRemoving(ctx context.Context, r *Record[O]) error {
	was := r.Note
	return e.backend.Update(ctx, r, func(n *Note) error {
		if n.State != was.State || n.Run != was.Run || n.Starter != was.Starter || !n.LeaseExpires.Equal(was.LeaseExpires) || !n.Expires.Equal(was.Expires) {
			return ErrDoneElsewhere
		}
		n.Removing, n.Stopping = true, n.State == atoll.StateRunning
		return nil
	})
}
