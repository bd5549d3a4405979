package remote

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// ConnectTimeout bounds one attempt to connect to a guest.
const ConnectTimeout = 30 * time.Second

// CaretakerIdleStop is the time after which an unused caretaker ends.
const CaretakerIdleStop = 30 * time.Second

// ReachGuest returns the running sandbox as its guest serves it. Kinds: ErrNotFound,
// ErrStopped, ErrUnavailable.
func (e *Engine[O]) ReachGuest(ctx context.Context, op, id string) (atoll.Sandbox, error) {
	inside, err := e.Guests.Connect(ctx, op, id, ConnectTimeout, func(ctx context.Context) (guestconn.Connection, error) {
		r, err := e.backend.Find(ctx, op, id, Known)
		if err != nil {
			return nil, err
		}
		if e.Caches && RequireRunning(op, &r.Status) != nil { // as far as is known
			if r, err = e.backend.Find(ctx, op, id, Latest); err != nil {
				return nil, err
			}
		}
		if err := RequireRunning(op, &r.Status); err != nil {
			return nil, err
		}
		g, err := e.backend.Connect(ctx, op, r)
		if err == nil {
			return g, nil
		}
		if ctx.Err() != nil {
			return nil, atoll.E(op, id, atoll.ErrUnavailable, ctx.Err())
		}
		if ended := e.backend.AwaitEnd(ctx, op, id); ended != nil { // most likely, it has just ended
			return nil, ended
		}
		return nil, err
	})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil { // another call has stopped the sandbox, and canceled this attempt
		if ended := e.backend.AwaitEnd(ctx, op, id); ended != nil {
			return nil, ended
		}
	}
	return inside, err
}

// checkRunning returns the error for a call that needs a running sandbox, and nil if the
// sandbox runs. A guest that answers shows that it does: the call may have failed because
// nothing listens on a port. Otherwise checkRunning waits for the sandbox's end.
func (e *Engine[O]) checkRunning(ctx context.Context, op, id string) error {
	reach, cancel := context.WithTimeout(ctx, e.ReachTimeout)
	defer cancel()
	inside, err := e.ReachGuest(reach, op, id)
	if kind := atoll.KindOf(err); kind == atoll.ErrStopped || kind == atoll.ErrNotFound {
		return err
	}
	if ctx.Err() != nil || err != nil && reach.Err() == nil { // a failed attempt has already waited for the end
		return ctx.Err()
	}
	if err == nil {
		answer, cancel := context.WithTimeout(ctx, e.AnswerTimeout)
		defer cancel()
		if _, err := inside.Status(answer); err == nil {
			return nil
		}
	}
	return e.backend.AwaitEnd(ctx, op, id)
}

func caretakerKey(id string) string { return "caretaker-" + id }

// reachCaretaker returns the volumes of a stopped sandbox, served by a caretaker, which ends by
// itself when unused.
func (e *Engine[O]) reachCaretaker(ctx context.Context, op, id string, names []string) (atoll.Sandbox, error) {
	release, err := e.locks.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := e.backend.Find(ctx, op, id, Known)
	if err != nil {
		return nil, err
	}
	switch {
	case r.State == atoll.StateRunning:
		return e.ReachGuest(ctx, op, id) // it was started meanwhile
	case r.Note.IsStarting(time.Now()):
		return nil, startingError(op, id)
	case !r.Note.Volume:
		return nil, atoll.Errorf(op, id, atoll.ErrStopped, "sandbox is stopped, and has no volumes")
	}
	if err := guestproc.CheckOnVolumes(op, id, &r.Note.Spec, names); err != nil {
		return nil, err
	}
	inside, err := e.Guests.Connect(ctx, op, caretakerKey(id), e.Patience+ConnectTimeout, func(ctx context.Context) (guestconn.Connection, error) {
		g, err := e.backend.ConnectCaretaker(ctx, op, r)
		if err == nil {
			err = e.checkAtRest(ctx, op, r, g)
		}
		switch {
		case err == nil:
			return g, nil
		case errors.Is(err, ErrDoneElsewhere):
			return nil, err
		}
		return nil, e.backend.WrapError(ctx, op, id, err)
	})
	if errors.Is(err, ErrDoneElsewhere) {
		return e.ReachGuest(ctx, op, id)
	}
	return inside, err
}

// CaretakerSpec returns the spec of a sandbox's caretaker.
func CaretakerSpec(spec *atoll.Spec) *atoll.Spec {
	c := spec.Clone()
	c.Cmd, c.TTY, c.OpenStdin, c.IdleStop = nil, nil, false, atoll.Duration(CaretakerIdleStop)
	c.Resources.GPUs = ""
	return c
}

// startingError returns the error of a call that needs a stopped sandbox, for one that is being
// started.
func startingError(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrStopped, "it is being created or started: try again")
}

// checkAtRest checks that the sandbox of a new caretaker g is still stopped: a program that
// starts it dismisses only a caretaker that exists. If it is not, checkAtRest ends the
// caretaker and returns an error: ErrDoneElsewhere if the sandbox runs.
func (e *Engine[O]) checkAtRest(ctx context.Context, op string, r *Record[O], g guestconn.Connection) error {
	now, err := e.backend.Find(ctx, op, r.ID, Latest)
	switch {
	case err == nil && now.State == atoll.StateRunning:
		err = ErrDoneElsewhere
	case err == nil && now.Note.IsStarting(time.Now()):
		err = startingError(op, r.ID)
	case err == nil:
		return nil
	}
	_ = g.Close()
	if now == nil && atoll.KindOf(err) != atoll.ErrNotFound {
		return err // the sandbox may be stopped, and other programs may use its caretaker
	}
	return errors.Join(err, RunCleanup(func(ctx context.Context) error { return e.backend.EndCaretaker(ctx, r) }))
}

// dismissCaretaker ends the caretaker of a stopped sandbox's volumes.
func (e *Engine[O]) dismissCaretaker(ctx context.Context, r *Record[O]) error {
	e.Guests.Cancel(caretakerKey(r.ID))
	return e.backend.EndCaretaker(ctx, r)
}
