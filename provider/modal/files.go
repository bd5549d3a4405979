package modal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// caretakerIdleStop is the time after which an unused caretaker ends.
const caretakerIdleStop = 30 * time.Second

func caretakerKey(id string) string { return "caretaker-" + id }

// reachCaretaker returns the volumes of a stopped sandbox, served by a caretaker: a guest in an
// instance with nothing else of the sandbox. The caretaker ends by itself when unused.
func (p *Provider) reachCaretaker(ctx context.Context, op, id string, names []string) (atoll.Sandbox, error) {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := p.findRecord(ctx, op, id)
	if err != nil {
		return nil, err
	}
	if r.State == atoll.StateRunning {
		return p.reachGuest(ctx, op, id) // it was started meanwhile
	}
	if r.isStarting() {
		return nil, startingError(op, id)
	}
	if !r.note.Volume {
		return nil, atoll.Errorf(op, id, atoll.ErrStopped, "sandbox is stopped, and has no volumes")
	}
	if err := guestproc.AtRest(op, id, &r.Spec, names); err != nil {
		return nil, err
	}
	sb, err := p.visits.Reach(ctx, op, caretakerKey(id), p.opts.Patience+connectTimeout, func(ctx context.Context) (guestconn.Inside, error) {
		g, err := p.connectCaretaker(ctx, r)
		if err == nil {
			err = p.checkAtRest(ctx, op, r, g)
		}
		switch {
		case err == nil:
			return g, nil
		case errors.Is(err, errDoneElsewhere):
			return nil, err
		}
		return nil, p.wrapError(ctx, op, id, err)
	})
	if errors.Is(err, errDoneElsewhere) {
		return p.reachGuest(ctx, op, id)
	}
	return sb, err
}

// startingError returns the error of a call that needs a stopped sandbox, for one that is being
// started.
func startingError(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrStopped, "it is being created or started: try again")
}

// checkAtRest checks that the sandbox of a new caretaker g is still stopped: a program that
// starts it dismisses only a caretaker that exists. If it is not, checkAtRest ends the
// caretaker and returns an error: errDoneElsewhere if the sandbox runs.
func (p *Provider) checkAtRest(ctx context.Context, op string, r *record, g guestconn.Inside) error {
	now, err := p.findRecord(ctx, op, r.ID)
	switch {
	case err == nil && now.State == atoll.StateRunning:
		err = errDoneElsewhere
	case err == nil && now.isStarting():
		err = startingError(op, r.ID)
	case err == nil:
		return nil
	}
	_ = g.Close()
	if now == nil && atoll.KindOf(err) != atoll.ErrNotFound {
		return err // the sandbox may be stopped, and other programs may use its caretaker
	}
	return errors.Join(err, runCleanup(func(ctx context.Context) error { return p.evictCaretaker(ctx, r) }))
}

// connectCaretaker connects to the caretaker of the sandbox. If another program has created
// one, it uses that, so writes through it go on.
func (p *Provider) connectCaretaker(ctx context.Context, r *record) (guestconn.Inside, error) {
	spec := r.note.Spec.Clone()
	spec.Cmd, spec.TTY, spec.OpenStdin, spec.IdleStop = nil, nil, false, atoll.Duration(caretakerIdleStop)
	spec.Resources.GPUs, spec.Ports, spec.Network, spec.Snapshot = "", nil, atoll.Network{}, ""
	for {
		l, _, err := p.makeInstance(ctx, spec, p.names.caretakerName(r.ID), roleCaretaker)
		if err != nil {
			return nil, err
		}
		g, err := p.awaitCaretakerGuest(ctx, r.ID, l)
		if err == nil {
			return g, nil
		}
		if !l.shared {
			err = errors.Join(err, runCleanup(func(ctx context.Context) error { return p.service.terminateInstance(ctx, l.id) }))
		} else if result, resultErr := p.service.awaitResult(ctx, l.id, endTimeout); result != nil && resultErr == nil {
			continue // it ended because it was unused
		}
		return nil, unreachableError("start", r.ID, "the server of its volumes", err)
	}
}

// awaitCaretakerGuest waits until a new instance is placed, and connects to its guest.
func (p *Provider) awaitCaretakerGuest(ctx context.Context, id string, l *instance) (guestconn.Inside, error) {
	result, err := p.service.awaitPlaced(ctx, l.id)
	if err != nil {
		return nil, err
	}
	if result != nil {
		return nil, fmt.Errorf("it was ended by Modal (%s): %s", result.GetStatus(), result.GetException())
	}
	return p.guestConnector(l.id, id)(ctx)
}

// dismissCaretaker ends the caretaker of a stopped sandbox's volumes.
func (p *Provider) dismissCaretaker(ctx context.Context, r *record) error {
	p.visits.Abandon(caretakerKey(r.ID))
	return p.evictCaretaker(ctx, r)
}

func (p *Provider) evictCaretaker(ctx context.Context, r *record) error {
	return p.service.terminateNamed(ctx, p.opts.appName(r.note.Spec.Project), p.names.caretakerName(r.ID))
}
