package remote

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// Stop implements atoll.Sandbox.
func (s *Sandbox[O]) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	return s.WithLockedRecord(ctx, "stop", func(r *Record[O]) error {
		if r.State != atoll.StateRunning {
			return nil
		}
		defer s.e.Sweeper.Wake()
		err := s.e.stopSandbox(ctx, r, grace)
		if errors.Is(err, ErrDoneElsewhere) {
			return nil
		}
		return err
	})
}

func (e *Engine[O]) stopSandbox(ctx context.Context, r *Record[O], grace time.Duration) error {
	if err := e.markStopping(ctx, r); err != nil {
		return err
	}
	defer e.Guests.Cancel(r.ID)
	of := *r
	asked, answered, err := e.stopProcesses(ctx, r, grace)
	var out *guest.Printed
	if err == nil {
		out, err = e.backend.FinishRun(ctx, r, grace, answered)
	}
	if err != nil && !asked {
		return errors.Join(err, RunCleanup(func(ctx context.Context) error { return e.unmarkStopping(ctx, &of) }))
	}
	if err != nil {
		return err // the run is ending, and the call that finds its end records that
	}
	return RunCleanup(func(ctx context.Context) error { // the output is in memory only
		end := StoppedEnd(&r.Note.Spec, out)
		end.Image = of.Image
		if err := e.WriteEnd(ctx, r, end, out); err != nil && !errors.Is(err, ErrDoneElsewhere) {
			return err
		}
		return e.backend.RetireRun(ctx, &of)
	})
}

// markStopping records that a sandbox is being stopped, before any process ends: another
// program may see the end sooner than the one that stops it. Errors: ErrDoneElsewhere, and
// those of Update.
func (e *Engine[O]) markStopping(ctx context.Context, r *Record[O]) error {
	run := r.Note.Run
	return e.backend.Update(ctx, r, func(n *Note) error {
		if n.State != atoll.StateRunning || n.Run != run {
			return ErrDoneElsewhere
		}
		n.Stopping = true
		return nil
	})
}

// unmarkStopping undoes markStopping after a failed stop, if the sandbox runs on: its end has
// another reason then. If the run has ended, it is recorded as stopped by the call that finds it.
func (e *Engine[O]) unmarkStopping(ctx context.Context, r *Record[O]) error {
	now, err := e.backend.Find(ctx, "stop", r.ID, Latest)
	if err != nil || now.State != atoll.StateRunning || now.Note.Run != r.Note.Run {
		return nil
	}
	err = e.backend.Update(ctx, now, func(n *Note) error {
		if n.State != atoll.StateRunning || n.Run != r.Note.Run {
			return ErrDoneElsewhere
		}
		n.Stopping = false
		return nil
	})
	if errors.Is(err, ErrDoneElsewhere) {
		return nil
	}
	return err
}

// stopProcesses ends all processes of a sandbox through its guest, after a grace period in
// which they may end by themselves. It reports whether the guest got the request, and
// whether it has answered that no process is left.
func (e *Engine[O]) stopProcesses(ctx context.Context, r *Record[O], grace time.Duration) (asked, answered bool, err error) {
	reach, cancel := context.WithTimeout(ctx, e.ReachTimeout)
	inside, err := e.ReachGuest(reach, "stop", r.ID)
	cancel()
	if asked = err == nil; asked {
		ctx, cancel := context.WithTimeout(ctx, grace+e.ReachTimeout)
		defer cancel()
		err = inside.Stop(ctx, grace)
	}
	if ctx.Err() != nil {
		return asked, false, ctx.Err()
	}
	if err == nil || atoll.KindOf(err) == atoll.ErrStopped {
		return asked, true, nil
	}
	e.Log.Warn("stop: its guest does not answer", "sandbox", r.ID, "err", err)
	return asked, false, nil
}

// Remove implements atoll.Sandbox.
func (s *Sandbox[O]) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.e.backend.Open(ctx, "remove"); err != nil {
		return err
	}
	release, err := s.e.locks.Lock(ctx, s.id)
	if err != nil {
		return err
	}
	return guestproc.RunDetached(ctx, &s.e.Work, CleanupTimeout, func(ctx context.Context) error {
		defer release()
		return s.e.backend.WrapError(ctx, "remove", s.id, s.e.removeSandbox(ctx, s.id, atoll.ApplyRemoveOptions(opts...)))
	})
}

// removeSandbox removes a sandbox whose lock the caller holds.
func (e *Engine[O]) removeSandbox(ctx context.Context, id string, opts atoll.RemoveOptions) error {
	r, err := e.backend.Find(ctx, "remove", id, Stored)
	switch {
	case err == nil:
		if err := e.dropSandbox(ctx, r); err != nil {
			return err
		}
	case atoll.KindOf(err) != atoll.ErrNotFound:
		return err
	}
	if !opts.Volumes {
		return nil
	}
	return e.backend.DropDataVolume(ctx, id, r)
}

// dropSandbox deletes everything of a sandbox but its volumes. It deletes the record last: as
// long as anything is left, List has the sandbox, and Remove can remove it.
func (e *Engine[O]) dropSandbox(ctx context.Context, r *Record[O]) error {
	if err := e.clearSandbox(ctx, r); err != nil {
		return err
	}
	return e.backend.Delete(ctx, r)
}

// clearSandbox deletes everything of a sandbox but its volumes and its record.
func (e *Engine[O]) clearSandbox(ctx context.Context, r *Record[O]) error {
	if err := e.dismissCaretaker(ctx, r); err != nil {
		return err
	}
	if r.Note.State == atoll.StateRunning && !r.Note.Stopping {
		_ = e.markStopping(ctx, r) // if this fails, the end of the run may look like a failure
	}
	if err := e.backend.DropRuns(ctx, r); err != nil {
		return err
	}
	e.Guests.Cancel(r.ID)
	if r.Note.Spec.Name == "" {
		return nil
	}
	return e.backend.ReleaseName(ctx, r)
}
