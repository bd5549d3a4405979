package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

const (
	createTimeout        = 10 * time.Minute // limits one creation, including the pull of the image
	maxBackoff           = 5 * time.Minute  // limits the wait after failed creations
	stockTTL             = 6 * time.Hour    // of stock that has a TTL; the pool replaces such stock at half of it
	defaultCheckInterval = 30 * time.Second // between checks of the stock
	sweepInterval        = 10 * time.Minute // between sweeps of other programs' stock
)

// wakeReceiver sends on c, whose capacity is 1, without blocking.
func wakeReceiver(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// runFiller creates stock until the layer is closed.
func (l *Provider) runFiller() {
	for {
		rest := l.startCreations()
		select {
		case <-l.ctx.Done():
			return
		case <-l.wake:
		case <-time.After(rest):
		}
	}
}

// startCreations starts as many creations as MaxBoots allows. It returns the time
// until the next attempt if nothing wakes the filler.
func (l *Provider) startCreations() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := time.Hour
	for l.creating < l.opts.MaxCreations && !l.closed {
		var next *entryState // the one that lacks the largest share of its minimum
		now := time.Now()
		for _, es := range l.entries {
			missing := es.missingCount()
			switch {
			case missing <= 0:
			case now.Before(es.retryAt):
				rest = min(rest, es.retryAt.Sub(now))
			case next == nil || missing*next.Min > next.missingCount()*es.Min:
				next = es
			}
		}
		if next == nil {
			break
		}
		l.creating++
		next.creating++
		l.background.Go(func() { l.createStock(next) })
	}
	return rest
}

// missingCount returns the number of sandboxes to create.
func (es *entryState) missingCount() int { return es.Min - len(es.warm) - es.creating - es.pending }

// createStock creates one sandbox for es and records the outcome in it.
func (l *Provider) createStock(es *entryState) {
	ctx, cancel := context.WithTimeout(l.ctx, createTimeout)
	defer cancel()
	sb, err := l.createRecorded(ctx, es)
	l.mu.Lock()
	l.creating--
	es.creating--
	defer l.mu.Unlock()
	close(es.made) // wakes callers that wait for the sandbox
	es.made = make(chan struct{})
	closed, first := l.closed, es.problem == ""
	switch {
	case err == nil:
		es.stats.Created++
		es.problem, es.backoff = "", l.opts.backoff
		es.warm = append(es.warm, stockItem{sb, time.Now()}) // also when closed: Close removes it
	case !closed:
		es.problem, es.retryAt, es.backoff = err.Error(), time.Now().Add(es.backoff), min(2*es.backoff, maxBackoff)
	}
	if err != nil && !closed && first {
		l.log.Warn("pool: cannot create a sandbox; will retry", "pool", es.Name, "err", err)
	}
	wakeReceiver(l.wake)
}

// createRecorded records the intent to create a sandbox for es, then creates it.
func (l *Provider) createRecorded(ctx context.Context, es *entryState) (atoll.Sandbox, error) {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return nil, err
	}
	s := es.Spec.Clone()
	s.ID, s.System.Warm = newID(), true
	if s.TTL > 0 {
		s.TTL = atoll.Duration(stockTTL)
	}
	l.mu.Lock()
	l.ownStock[s.ID] = struct{}{}
	l.mu.Unlock()
	w := &store.Warm{ID: s.ID, Project: s.Project, Scope: l.scope, Pool: es.Name, Holder: me, Made: time.Now()}
	if err = l.store.InsertWarm(ctx, w); err == nil {
		l.opts.onStep("intent")
		var sb atoll.Sandbox
		if sb, err = l.Provider.Create(ctx, s); err == nil {
			l.opts.onStep("made")
			return sb, nil
		}
	}
	if dropErr := l.dropRecord(ctx, s.ID); dropErr != nil {
		l.log.Warn("pool: cannot delete the record of a failed creation", "sandbox", s.ID, "err", dropErr) // the next sweep does
	}
	return nil, err
}

// dropRecord deletes the record of a sandbox that does not exist.
func (l *Provider) dropRecord(ctx context.Context, id string) error {
	if err := l.store.DropWarm(context.WithoutCancel(ctx), id); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ownStock, id)
	delete(l.toRemove, id)
	delete(l.knownClaims, id)
	return nil
}

// removeStock removes a popped sandbox of the stock. If that fails, maintenance
// tries again.
func (l *Provider) removeStock(ctx context.Context, es *entryState, id string) error {
	l.scheduleRemoval(es, id)
	return l.finishRemoval(ctx, id)
}

// scheduleRemoval marks a sandbox of the stock for removal.
func (l *Provider) scheduleRemoval(es *entryState, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.toRemove[id] = es
}

// finishRemoval removes a sandbox that is marked for removal. If another goroutine
// is removing it, finishRemoval waits.
func (l *Provider) finishRemoval(ctx context.Context, id string) error {
	unlock, err := l.removalLocks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return l.finishRemovalLocked(ctx, id)
}

// finishRemovalLocked is finishRemoval for a caller that holds the removal lock of
// id.
func (l *Provider) finishRemovalLocked(ctx context.Context, id string) error {
	l.mu.Lock()
	es := l.toRemove[id]
	l.mu.Unlock()
	if es == nil {
		return nil // removed already; a new sandbox may have the same ID
	}
	err := l.removeSandbox(ctx, id)
	if err == nil {
		err = l.dropRecord(ctx, id)
	}
	if err != nil {
		l.log.Warn("pool: cannot remove a sandbox; will retry", "pool", es.Name, "sandbox", id, "err", err)
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	es.stats.Destroyed++
	return nil
}

// removeSandbox removes a sandbox and its volumes. It returns nil if the sandbox
// does not exist.
func (l *Provider) removeSandbox(ctx context.Context, id string) error {
	sb, err := l.Provider.Get(ctx, id)
	if err == nil {
		err = sb.Remove(ctx, atoll.RemoveVolumes())
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}

// removeStockAsync is removeStock in the background.
func (l *Provider) removeStockAsync(es *entryState, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.toRemove[id] = es
	if !l.closed { // otherwise Close removes it
		l.background.Go(func() { _ = l.finishRemoval(l.ctx, id) }) // logs its error
	}
}

// removeAllStock removes all stock. The caller must have stopped the filler.
func (l *Provider) removeAllStock(ctx context.Context) {
	l.mu.Lock()
	for _, es := range l.entries {
		for _, it := range es.warm {
			l.toRemove[it.sb.ID()] = es
		}
		es.warm = nil
	}
	for id, r := range l.reserved {
		l.toRemove[id] = r.es
	}
	clear(l.reserved)
	all := maps.Clone(l.toRemove)
	l.mu.Unlock()
	var done sync.WaitGroup
	for id := range all {
		done.Go(func() { _ = l.finishRemoval(ctx, id) }) // logs its error
	}
	done.Wait()
}

// runMaintenance checks the stock of this program and, with Options.Server, sweeps
// that of dead programs, until the layer is closed.
func (l *Provider) runMaintenance() {
	var swept time.Time
	for {
		if l.opts.Server && time.Since(swept) > sweepInterval {
			if err := l.sweepRecords(l.ctx); err != nil && l.ctx.Err() == nil {
				l.log.Warn("pool: cannot remove stock of dead programs", "err", err)
			}
			swept = time.Now()
		}
		select {
		case <-l.ctx.Done():
			return
		case <-l.recheck:
		case <-time.After(l.checkInterval()):
		}
		l.checkStock(l.ctx)
	}
}

// checkInterval returns the interval between checks of the stock. A check counts as
// use, so the interval is short enough to prevent an idle stop.
func (l *Provider) checkInterval() time.Duration {
	every := time.Duration(defaultCheckInterval)
	if l.opts.checkEvery > 0 {
		every = l.opts.checkEvery
	}
	for _, es := range l.entries {
		if idle := time.Duration(es.Spec.IdleStop); idle > 0 {
			every = min(every, idle/3)
		}
	}
	return every
}

// checkStock discards unhealthy stock and expired reservations, and retries
// removals that have failed.
func (l *Provider) checkStock(ctx context.Context) {
	type candidate struct {
		es *entryState
		it stockItem
	}
	var all []candidate
	l.expireReservations()
	l.mu.Lock()
	pending := maps.Clone(l.toRemove)
	for _, es := range l.entries {
		for _, it := range es.warm {
			all = append(all, candidate{es, it})
		}
	}
	l.mu.Unlock()
	for _, c := range all {
		limited, cancel := context.WithTimeout(ctx, l.opts.HealthTimeout)
		err := l.checkHealth(limited, c.es, c.it)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil && l.detachItem(c.es, c.it) {
			l.log.Info("pool: discard an unusable sandbox", "pool", c.es.Name, "sandbox", c.it.sb.ID(), "why", err)
			wakeReceiver(l.wake)
			_ = l.removeStock(ctx, c.es, c.it.sb.ID()) // logs its error
		}
	}
	for id := range pending {
		if unlock, ok := l.removalLocks.Try(id); ok { // otherwise another goroutine is removing it
			_ = l.finishRemovalLocked(ctx, id) // logs its error
			unlock()
		}
	}
}

// detachItem takes it out of the warm sandboxes of es. It returns false if another
// goroutine has taken it.
func (l *Provider) detachItem(es *entryState, it stockItem) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(es.warm, func(other stockItem) bool { return other.sb == it.sb })
	if i < 0 {
		return false
	}
	es.warm = slices.Delete(es.warm, i, i+1)
	return true
}

// sweepRecords removes the stock of dead programs, and deletes claims whose sandbox
// is gone. It skips a record if it cannot tell.
func (l *Provider) sweepRecords(ctx context.Context) error {
	all, err := l.store.Warm(ctx, l.scope)
	if err != nil || len(all) == 0 {
		return err
	}
	me, err := l.store.Holder(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !w.Claimed.IsZero() {
			errs = append(errs, l.settleClaim(ctx, w))
			continue
		}
		if w.Holder == me {
			continue
		}
		alive, err := l.store.IsAlive(ctx, w.Holder)
		if err == nil && !alive {
			if err = l.removeSandbox(ctx, w.ID); err == nil {
				err = l.dropRecord(ctx, w.ID)
			}
			if err == nil {
				l.log.Info("pool: removed stock of a dead program", "pool", w.Pool, "sandbox", w.ID)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// settleClaim deletes a claim if neither the provider nor the registry has its
// sandbox; otherwise it caches the claim.
func (l *Provider) settleClaim(ctx context.Context, w *store.Warm) error {
	gone, err := l.isGone(ctx, w.ID)
	switch {
	case err != nil:
		return err
	case gone:
		return l.dropRecord(ctx, w.ID)
	}
	l.rememberClaim(w)
	return nil
}

// isGone reports whether neither the provider nor the registry has a sandbox. The
// registry creates a recorded sandbox again.
func (l *Provider) isGone(ctx context.Context, id string) (bool, error) {
	if _, err := l.Provider.Get(ctx, id); atoll.KindOf(err) != atoll.ErrNotFound {
		return false, err
	}
	_, err := l.store.Find(ctx, id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return true, nil
	}
	return false, err
}
