package pool

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A reservation is a warm sandbox for the caller that has its ID. No other caller
// ever gets it, even if it expires: the holder of the ID may yet remove the sandbox
// with that ID.
type reservation struct {
	es *entryState
	it stockItem
	at time.Time
}

// Reserve implements atoll.Reserver.
func (l *Provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	es, err := l.entryFor(spec)
	switch {
	case err != nil:
		return "", err
	case es == nil:
		return atoll.Reserve(ctx, l.Provider, spec)
	case spec.ID != "":
		return "", nil
	}
	limited, cancel := context.WithTimeout(ctx, l.opts.HealthTimeout)
	defer cancel()
	it, ok, err := l.popHealthy(ctx, limited, es)
	if !ok {
		return "", err
	}
	l.mu.Lock()
	l.reserved[it.sb.ID()] = &reservation{es, it, time.Now()}
	l.mu.Unlock()
	l.background.Done() // Close does not wait for reservations
	return it.sb.ID(), nil
}

// takeReservation takes the reservation of an ID; nil if there is none. If it is
// not nil, the caller must call finishPop. If the reservation has expired,
// takeReservation first waits for the removal of its sandbox.
func (l *Provider) takeReservation(ctx context.Context, id string) (*reservation, error) {
	id, _ = atoll.NormalizeID(id) // no reservation has an invalid id
	if !IsPoolID(id) {
		return nil, nil
	}
	l.mu.Lock()
	r := l.reserved[id]
	if r == nil || l.closed {
		l.mu.Unlock()
		return nil, l.finishRemoval(ctx, id)
	}
	defer l.mu.Unlock()
	delete(l.reserved, id)
	l.background.Add(1)
	return r, nil
}

// claimReservation claims the sandbox of r for spec, whose entry is es. If they do
// not match, or the sandbox is unusable, it removes the sandbox and returns nil.
func (l *Provider) claimReservation(ctx context.Context, r *reservation, es *entryState, spec *atoll.Spec) (sb atoll.Sandbox, err error) {
	defer wakeReceiver(l.wake)
	defer func() { l.finishPop(r.es, sb != nil) }()
	err = errUnusable
	if es == r.es {
		sb, err = l.claimIfHealthy(ctx, r, spec)
	}
	if err == nil {
		return sb, nil
	}
	l.log.Info("pool: discard an unusable reserved sandbox", "pool", r.es.Name, "sandbox", r.it.sb.ID(), "why", err)
	l.mu.Lock()
	r.es.stats.ColdMisses++
	l.mu.Unlock()
	return nil, l.removeStock(ctx, r.es, r.it.sb.ID()) // Create makes one with this ID, or returns the error
}

// claimIfHealthy claims the sandbox of r for spec.
func (l *Provider) claimIfHealthy(ctx context.Context, r *reservation, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := l.recheckReservation(ctx, r); err != nil {
		return nil, err
	}
	w, err := l.recordClaim(ctx, r.es, r.it, spec)
	if err != nil {
		return nil, err
	}
	return l.completeClaim(ctx, r.es, r.it, w)
}

// recheckReservation checks the health of a reserved sandbox, unless Reserve did so
// less than Options.HealthTimeout ago.
func (l *Provider) recheckReservation(ctx context.Context, r *reservation) error {
	if time.Since(r.at) < l.opts.HealthTimeout {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, l.opts.HealthTimeout)
	defer cancel()
	return l.checkHealth(limited, r.es, r.it)
}

// expireReservations marks the sandboxes of expired reservations for removal.
func (l *Provider) expireReservations() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, r := range l.reserved {
		if time.Since(r.at) > l.opts.reserveTTL {
			delete(l.reserved, id)
			r.es.pending--
			l.toRemove[id] = r.es
			wakeReceiver(l.wake)
		}
	}
}
