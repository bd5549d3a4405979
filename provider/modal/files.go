package modal

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// ConnectCaretaker implements remote.Runs. If another program has created a caretaker, it uses
// that, so writes through it go on.
func (b backend) ConnectCaretaker(ctx context.Context, _ string, r *record) (guestconn.Connection, error) {
	p, spec := b.Provider, remote.CaretakerSpec(&r.Note.Spec)
	spec.Ports, spec.Network, spec.Snapshot = nil, atoll.Network{}, ""
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
			err = errors.Join(err, remote.RunCleanup(func(ctx context.Context) error { return p.service.terminateInstance(ctx, l.id) }))
		} else if result, resultErr := p.service.awaitResult(ctx, l.id, p.opts.endTimeout); result != nil && resultErr == nil {
			continue // it ended because it was unused
		}
		return nil, unreachableError("start", r.ID, "the server of its volumes", err)
	}
}

// awaitCaretakerGuest waits until a new instance is placed, and connects to its guest.
func (p *Provider) awaitCaretakerGuest(ctx context.Context, id string, l *instance) (guestconn.Connection, error) {
	result, err := p.service.awaitPlaced(ctx, l.id)
	if err != nil {
		return nil, err
	}
	if result != nil {
		return nil, fmt.Errorf("it was ended by Modal (%s): %s", result.GetStatus(), result.GetException())
	}
	return p.guestConnector(l.id, id)(ctx)
}

// EndCaretaker implements remote.Runs.
func (b backend) EndCaretaker(ctx context.Context, r *record) error {
	return b.service.terminateNamed(ctx, b.opts.appName(r.Note.Spec.Project), b.names.caretakerName(r.ID))
}
