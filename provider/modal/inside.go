package modal

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
)

// connectTimeout is how long it may take to connect to a guest.
const connectTimeout = 30 * time.Second

// endTimeout is how long Modal may take to say that a sandbox has ended whose guest has
// just gone.
const endTimeout = 15 * time.Second

// reachGuest returns the sandbox as it is from inside. Kinds: ErrNotFound, ErrStopped,
// ErrUnavailable.
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
		g, err := p.guestConnector(r.note.Life, id)(ctx)
		if err == nil {
			return g, nil
		}
		if ctx.Err() != nil {
			return nil, atoll.E(op, id, atoll.ErrUnavailable, ctx.Err())
		}
		if ended := p.awaitEnd(ctx, op, id); ended != nil { // most likely it has just done that
			return nil, ended
		}
		return nil, unreachableError(op, id, "its guest", err)
	})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil { // who ends the sandbox has given up the attempt
		if ended := p.awaitEnd(ctx, op, id); ended != nil {
			return nil, ended
		}
	}
	return inside, err
}

// guestConnector connects to the guest of a life, whose sandbox has that id.
func (p *Provider) guestConnector(life, id string) func(context.Context) (guestconn.Inside, error) {
	return func(ctx context.Context) (guestconn.Inside, error) {
		conn, err := p.execGuest(ctx, life, "connect")
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
			p.sweeper.Rouse() // it may have ended, and be one that goes then
		}()
		return g, nil
	}
}

// checkRunning is ends for a sandbox of whose guest something could not be had. One whose guest
// answers has not gone: it may be that nobody listens on a port.
func (p *Provider) checkRunning(ctx context.Context, op, id string) error {
	inside, err := p.reachGuest(ctx, op, id) // who cannot connect has waited for the end
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

// awaitEnd waits a moment for the sandbox to end, and is the error of what needs it to run;
// nil if it does.
func (p *Provider) awaitEnd(ctx context.Context, op, id string) error {
	r, err := p.findRecord(ctx, op, id)
	if err == nil && r.State == atoll.StateRunning {
		if _, err = p.service.awaitResult(ctx, r.note.Life, endTimeout); err == nil {
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
