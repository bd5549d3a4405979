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

// caretakerTime is how long a caretaker stays when nobody needs it.
const caretakerTime = 30 * time.Second

func caretakerOf(id string) string { return "caretaker-" + id }

// caretaker returns the volumes of a stopped sandbox, as a guest serves them in another one
// that has nothing else of it. It ends by itself.
func (p *Provider) caretaker(ctx context.Context, op, id string, names []string) (atoll.Sandbox, error) {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := p.look(ctx, op, id)
	if err != nil {
		return nil, err
	}
	if r.State == atoll.StateRunning {
		return p.inside(ctx, op, id) // meanwhile
	}
	if r.begins() {
		return nil, begins(op, id)
	}
	if !r.note.Volume {
		return nil, atoll.Errorf(op, id, atoll.ErrStopped, "sandbox is stopped, and has no volumes")
	}
	if err := guestproc.AtRest(op, id, &r.Spec, names); err != nil {
		return nil, err
	}
	sb, err := p.visits.Reach(ctx, op, caretakerOf(id), p.opts.Patience+visitTime, func(ctx context.Context) (guestconn.Inside, error) {
		g, err := p.hire(ctx, r)
		if err == nil {
			err = p.besideNone(ctx, op, r, g)
		}
		switch {
		case err == nil:
			return g, nil
		case errors.Is(err, errElse):
			return nil, err
		}
		return nil, p.failed(ctx, op, id, err)
	})
	if errors.Is(err, errElse) {
		return p.inside(ctx, op, id)
	}
	return sb, err
}

// begins is the error of what needs a sandbox to be at rest that is about to run.
func begins(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrStopped, "somebody is just making it, or starting it: try again")
}

// besideNone looks whether the sandbox is still at rest whose caretaker g is of: who starts it
// dismisses only one that is there. Otherwise the caretaker goes, and the error is errElse if
// the sandbox runs.
func (p *Provider) besideNone(ctx context.Context, op string, r *record, g guestconn.Inside) error {
	now, err := p.look(ctx, op, r.ID)
	switch {
	case err == nil && now.State == atoll.StateRunning:
		err = errElse
	case err == nil && now.begins():
		err = begins(op, r.ID)
	case err == nil:
		return nil
	}
	_ = g.Close()
	if now == nil && atoll.KindOf(err) != atoll.ErrNotFound {
		return err // it may be at rest, and others may use its caretaker
	}
	return errors.Join(err, settledLast(func(ctx context.Context) error { return p.evictCaretaker(ctx, r) }))
}

// hire connects to the caretaker of the sandbox, which another program may have made: what
// that writes by it goes on.
func (p *Provider) hire(ctx context.Context, r *record) (guestconn.Inside, error) {
	spec := r.note.Spec.Clone()
	spec.Cmd, spec.TTY, spec.OpenStdin, spec.IdleStop = nil, nil, false, atoll.Duration(caretakerTime)
	spec.Resources.GPUs, spec.Ports, spec.Network, spec.Snapshot = "", nil, atoll.Network{}, ""
	for {
		l, _, err := p.bear(ctx, spec, p.names.caretaker(r.ID), roleCaretaker)
		if err != nil {
			return nil, err
		}
		g, err := p.meet(ctx, r.ID, l)
		if err == nil {
			return g, nil
		}
		if !l.others {
			err = errors.Join(err, settledLast(func(ctx context.Context) error { return p.service.finish(ctx, l.id) }))
		} else if result, resultErr := p.service.result(ctx, l.id, lastMoment); result != nil && resultErr == nil {
			continue // nobody had needed it any more
		}
		return nil, unreached("start", r.ID, "what serves its volumes", err)
	}
}

// meet connects to the guest of a life that has just been made.
func (p *Provider) meet(ctx context.Context, id string, l *life) (guestconn.Inside, error) {
	result, err := p.service.placed(ctx, l.id)
	if err != nil {
		return nil, err
	}
	if result != nil {
		return nil, fmt.Errorf("it was ended by Modal (%s): %s", result.GetStatus(), result.GetException())
	}
	return p.connector(l.id, id)(ctx)
}

// dismiss ends whoever looks after the volumes of a sandbox that is stopped.
func (p *Provider) dismiss(ctx context.Context, r *record) error {
	p.visits.Abandon(caretakerOf(r.ID))
	return p.evictCaretaker(ctx, r)
}

func (p *Provider) evictCaretaker(ctx context.Context, r *record) error {
	return p.service.evict(ctx, p.opts.app(r.note.Spec.Project), p.names.caretaker(r.ID))
}
