package pool

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A reservation is stock that waits for who has its id. Nobody else gets it, not even
// when it is not wanted any more: whoever has written the id down may yet remove the
// sandbox of that id.
type reservation struct {
	sh *shelf
	it item
	at time.Time
}

// Reserve implements atoll.Reserver.
func (l *Provider) Reserve(ctx context.Context, spec *atoll.Spec) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := spec.Validate(); err != nil {
		return "", err
	}
	sh, err := l.shelfOf(spec)
	switch {
	case err != nil:
		return "", err
	case sh == nil:
		return atoll.Reserve(ctx, l.Provider, spec)
	case spec.ID != "":
		return "", nil
	}
	limited, cancel := context.WithTimeout(ctx, l.opts.Patience)
	defer cancel()
	it, ok, err := l.acquire(ctx, limited, sh)
	if !ok {
		return "", err
	}
	l.mu.Lock()
	l.reserved[it.sb.ID()] = &reservation{sh, it, time.Now()}
	l.mu.Unlock()
	l.work.Done() // Close does not wait for who comes
	return it.sb.ID(), nil
}

// redeem takes what was reserved under an id, nil if there is nothing. The caller
// calls popped. What was there once and is to go has gone then.
func (l *Provider) redeem(ctx context.Context, id string) (*reservation, error) {
	id, _ = atoll.NormalizeID(id) // it is valid
	if !isOurs(id) {
		return nil, nil
	}
	l.mu.Lock()
	r := l.reserved[id]
	if r == nil || l.closed {
		l.mu.Unlock()
		return nil, l.bury(ctx, id)
	}
	defer l.mu.Unlock()
	delete(l.reserved, id)
	l.work.Add(1)
	return r, nil
}

// keepWord gives away what was reserved, if sh has it, which is the shelf with what
// spec asks for. nil means that it cannot be had, and has gone.
func (l *Provider) keepWord(ctx context.Context, r *reservation, sh *shelf, spec *atoll.Spec) (sb atoll.Sandbox, err error) {
	defer poke(l.wake)
	defer func() { l.popped(r.sh, sb != nil) }()
	err = errUseless
	if sh == r.sh {
		sb, err = l.handOver(ctx, r, spec)
	}
	if err == nil {
		return sb, nil
	}
	l.log.Info("pool: what was reserved is of no use and goes", "pool", r.sh.Name, "sandbox", r.it.sb.ID(), "why", err)
	l.mu.Lock()
	r.sh.stats.ColdMisses++
	l.mu.Unlock()
	return nil, l.discard(ctx, r.sh, r.it.sb.ID()) // who makes one of this id finds out what is wrong
}

func (l *Provider) handOver(ctx context.Context, r *reservation, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := l.stillHealthy(ctx, r); err != nil {
		return nil, err
	}
	w, err := l.claim(ctx, r.sh, r.it, spec)
	if err != nil {
		return nil, err
	}
	return l.give(ctx, r.sh, r.it, w)
}

// stillHealthy is healthy of what was found so when it was reserved.
func (l *Provider) stillHealthy(ctx context.Context, r *reservation) error {
	if time.Since(r.at) < l.opts.Patience {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, l.opts.Patience)
	defer cancel()
	return l.healthy(limited, r.sh, r.it)
}

// lapse has what nobody has come for removed.
func (l *Provider) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, r := range l.reserved {
		if time.Since(r.at) > l.opts.hold {
			delete(l.reserved, id)
			r.sh.popped--
			l.doomed[id] = r.sh
			poke(l.wake)
		}
	}
}
