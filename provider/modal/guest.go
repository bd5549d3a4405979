package modal

import (
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// endTimeout bounds how long Modal takes to report the end of a sandbox after its guest is
// gone.
const endTimeout = 15 * time.Second

// Connect implements remote.Runs.
func (b backend) Connect(ctx context.Context, op string, r *record) (guestconn.Connection, error) {
	g, err := b.guestConnector(r.Note.Run, r.ID)(ctx)
	if err != nil && ctx.Err() == nil {
		return nil, unreachableError(op, r.ID, "its guest", err)
	}
	return g, err
}

// guestConnector returns a function that connects to the guest of an instance of the sandbox
// with that id.
func (p *Provider) guestConnector(instanceID, id string) func(context.Context) (guestconn.Connection, error) {
	return func(ctx context.Context) (guestconn.Connection, error) {
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
			p.engine.Sweeper.Wake() // the sandbox may have ended, and may be removed at its end
		}()
		return g, nil
	}
}

// AwaitEnd implements remote.Runs.
func (b backend) AwaitEnd(ctx context.Context, op, id string) error {
	r, err := b.findRecord(ctx, op, id)
	if err == nil && r.State == atoll.StateRunning {
		if _, err = b.service.awaitResult(ctx, r.Note.Run, b.opts.endTimeout); err == nil {
			r, err = b.findRecord(ctx, op, id)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return b.wrapError(ctx, op, id, err)
	}
	return remote.RequireRunning(op, &r.Status)
}
