package modal

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
)

// connectTimeout bounds one attempt to connect to a guest.
const connectTimeout = 30 * time.Second

// endTimeout bounds how long Modal takes to report the end of a sandbox after its guest is
// gone.
const endTimeout = 15 * time.Second

// reachGuest returns the running sandbox as its guest serves it. Kinds: ErrNotFound,
// ErrStopped, ErrUnavailable.
func (p *Provider) reachGuest(ctx context.Context, op, id string) (atoll.Sandbox, error) {
	if err := p.open(ctx, op); err != nil {
		return nil, err
	}
	inside, err := p.visits.Reach(ctx, op, id, connectTimeout, func(ctx context.Context) (guestconn.Inside, error) {
		r, err := p.findRecord(ctx, op, id)
		if err != nil {
			return nil, err
		}
		if err := requireRunning(op, &r.Status); err != nil {
			return nil, err
		}
		g, err := p.guestConnector(r.note.Instance, id)(ctx)
		if err == nil {
			return g, nil
		}
		if ctx.Err() != nil {
			return nil, atoll.E(op, id, atoll.ErrUnavailable, ctx.Err())
		}
		if ended := p.awaitEnd(ctx, op, id); ended != nil { // most likely, it has just ended
			return nil, ended
		}
		return nil, unreachableError(op, id, "its guest", err)
	})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil { // another call has stopped the sandbox, and canceled this attempt
		if ended := p.awaitEnd(ctx, op, id); ended != nil {
			return nil, ended
		}
	}
	return inside, err
}

// guestConnector returns a function that connects to the guest of an instance of the sandbox
// with that id.
func (p *Provider) guestConnector(instanceID, id string) func(context.Context) (guestconn.Inside, error) {
	return func(ctx context.Context) (guestconn.Inside, error) {
		conn, err := p.execGuest(ctx, instanceID, "connect")
		if err != nil {
			return nil, err
		}
		g, err := guest.Acquaint(ctx, conn, id)
		if err != nil {
			_ = conn.Close()
			return nil, errors.Join(err, conn.stderrError())
		}
		go func() {
			<-g.Done()
			p.sweeper.Rouse() // the sandbox may have ended, and may be removed at its end
		}()
		return g, nil
	}
}

// checkRunning returns the error for a call that needs a running sandbox, and nil if the
// sandbox runs. A guest that answers shows that it does: the call may have failed because
// nothing listens on a port. Otherwise checkRunning waits up to endTimeout for the sandbox's
// end.
func (p *Provider) checkRunning(ctx context.Context, op, id string) error {
	inside, err := p.reachGuest(ctx, op, id) // a failed attempt has already waited for the end
	if kind := atoll.KindOf(err); kind == atoll.ErrStopped || kind == atoll.ErrNotFound {
		return err
	}
	if err != nil {
		return ctx.Err()
	}
	moment, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if _, err := inside.Status(moment); err == nil {
		return nil
	}
	return p.awaitEnd(ctx, op, id)
}

// awaitEnd waits up to endTimeout for the end of the sandbox. It returns the error of a call
// that needs a running sandbox; nil if it still runs.
func (p *Provider) awaitEnd(ctx context.Context, op, id string) error {
	r, err := p.findRecord(ctx, op, id)
	if err == nil && r.State == atoll.StateRunning {
		if _, err = p.service.awaitResult(ctx, r.note.Instance, endTimeout); err == nil {
			r, err = p.findRecord(ctx, op, id)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return p.wrapError(ctx, op, id, err)
	}
	return requireRunning(op, &r.Status)
}
