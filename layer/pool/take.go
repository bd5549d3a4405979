package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Create implements atoll.Provider. If spec matches an entry, it returns the oldest
// warm sandbox that is healthy, or the one reserved under spec.ID. Otherwise, or if
// the pool is empty, it creates a sandbox.
func (l *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	es, err := l.entryFor(spec)
	if err != nil {
		return nil, err
	}
	if es == nil && len(l.entries) > 0 {
		l.mu.Lock()
		l.unmatched++
		l.mu.Unlock()
	}
	r, err := l.takeReservation(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	var sb atoll.Sandbox
	switch {
	case r != nil:
		sb, err = l.claimReservation(ctx, r, es, spec)
	case es != nil && spec.ID == "":
		sb, err = l.takeWarm(ctx, es, spec)
	}
	if sb == nil && err == nil {
		sb, err = l.createCold(ctx, spec)
	}
	return sb, err
}

// entryFor returns the entry that matches spec, ignoring its ID; nil if there is
// none.
func (l *Provider) entryFor(spec *atoll.Spec) (*entryState, error) {
	if len(l.entries) == 0 {
		return nil, nil
	}
	full, err := spec.Complete(l.scope)
	if err != nil {
		return nil, err
	}
	return l.byFingerprint[l.fingerprintSpec(full)], nil
}

// fingerprintSpec returns the Fingerprint of full with the default image filled in.
func (l *Provider) fingerprintSpec(full *atoll.Spec) string {
	s := *full
	if s.Image == "" && s.Snapshot == "" {
		s.Image = l.opts.Image
	}
	return Fingerprint(&s)
}

// takeWarm claims a warm sandbox of es for spec, or the next one that the pool creates at this moment. It returns nil if
// there is none, or if the name may be taken.
func (l *Provider) takeWarm(ctx context.Context, es *entryState, spec *atoll.Spec) (atoll.Sandbox, error) {
	defer wakeReceiver(l.wake) // deferred: a creation would slow down this call
	sb, found, err := l.takeNow(ctx, es, spec)
	if found || err != nil {
		return sb, err
	}
	if waited, err := l.awaitCreation(ctx, es); !waited {
		return nil, err
	}
	sb, _, err = l.takeNow(ctx, es, spec)
	return sb, err
}

// takeNow claims a warm sandbox of es for spec. found is false if none is healthy. The result is nil, too, if the name may
// be taken.
func (l *Provider) takeNow(ctx context.Context, es *entryState, spec *atoll.Spec) (sb atoll.Sandbox, found bool, err error) {
	limited, cancel := context.WithTimeout(ctx, l.opts.HealthTimeout) // for all health checks together
	defer cancel()
	for {
		it, ok, err := l.popHealthy(ctx, limited, es)
		if !ok {
			return nil, false, err
		}
		sb, err := l.offerItem(ctx, es, it, spec)
		l.finishPop(es, sb != nil)
		if !errors.Is(err, errUnusable) {
			return sb, true, err
		}
	}
}

// popHealthy pops the oldest healthy sandbox of es. limited bounds the checks; ok
// is false if none is found before it ends. If ok, the caller must call finishPop.
func (l *Provider) popHealthy(ctx, limited context.Context, es *entryState) (it stockItem, ok bool, err error) {
	for {
		it, ok := l.popOldest(es, limited.Err() != nil)
		if !ok {
			return stockItem{}, false, nil
		}
		err := l.checkHealth(limited, es, it)
		switch {
		case err == nil:
			l.opts.onStep("healthy")
			return it, true, nil
		case ctx.Err() != nil: // the caller gave up; the sandbox may be healthy
			l.putBack(es, it)
			l.finishPop(es, false)
			return stockItem{}, false, ctx.Err()
		}
		l.discardUnhealthy(es, it, err)
		l.finishPop(es, false)
	}
}

// discardUnhealthy removes a popped sandbox in the background.
func (l *Provider) discardUnhealthy(es *entryState, it stockItem, why error) {
	l.log.Info("pool: discard an unusable sandbox", "pool", es.Name, "sandbox", it.sb.ID(), "why", why)
	l.removeStockAsync(es, it.sb.ID())
	wakeReceiver(l.recheck) // others may be unhealthy, too
}

// offerItem claims a popped sandbox for spec. It returns nil, nil if another claim
// has the name: the cold path then decides whether the name is free.
func (l *Provider) offerItem(ctx context.Context, es *entryState, it stockItem, spec *atoll.Spec) (atoll.Sandbox, error) {
	w, err := l.recordClaim(ctx, es, it, spec)
	switch kind := atoll.KindOf(err); {
	case kind == atoll.ErrAlreadyExists:
		l.putBack(es, it)
		return nil, nil
	case kind == atoll.ErrConflict:
		l.log.Warn("pool: another program deleted the record of stock", "pool", es.Name, "sandbox", it.sb.ID(), "err", err)
		l.removeStockAsync(es, it.sb.ID())
		return nil, errUnusable
	case err != nil:
		l.putBack(es, it)
		return nil, err
	}
	sb, err := l.completeClaim(ctx, es, it, w)
	if err != nil {
		l.removeStockAsync(es, it.sb.ID())
	}
	return sb, err
}

// popOldest pops the oldest sandbox of es. With late, or if es is empty, it counts
// a miss and returns false. Otherwise the caller must call finishPop: until then
// the filler does not replace the sandbox, which may come back, and Close waits.
func (l *Provider) popOldest(es *entryState, late bool) (stockItem, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(es.warm) == 0 || late || l.closed {
		es.stats.ColdMisses++
		return stockItem{}, false
	}
	it := es.warm[0]
	es.warm = slices.Delete(es.warm, 0, 1)
	es.pending++
	l.background.Add(1)
	return it, true
}

// awaitCreation waits for a sandbox that the pool creates at this moment, unless another caller does: it is ready sooner
// than a new one. It reports whether it has waited.
func (l *Provider) awaitCreation(ctx context.Context, es *entryState) (bool, error) {
	l.mu.Lock()
	if es.creating <= es.waiting || l.closed {
		l.mu.Unlock()
		return false, nil
	}
	es.waiting++
	made := es.made
	l.mu.Unlock()
	defer l.endWait(es)
	select {
	case <-made:
	case <-ctx.Done():
		return false, ctx.Err()
	case <-l.ctx.Done():
		return false, nil
	}
	l.mu.Lock()
	es.stats.ColdMisses-- // the next attempt counts
	l.mu.Unlock()
	return true, nil
}

// endWait ends awaitCreation.
func (l *Provider) endWait(es *entryState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	es.waiting--
}

// finishPop ends a successful popOldest. hit reports whether a caller got the
// sandbox.
func (l *Provider) finishPop(es *entryState, hit bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.background.Done()
	es.pending--
	if hit {
		es.stats.WarmHits++
	}
}

// putBack returns a popped sandbox to es.
func (l *Provider) putBack(es *entryState, it stockItem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	es.warm = slices.Insert(es.warm, 0, it)
}

// checkHealth returns why a sandbox of the stock must not be given away; nil if it
// is healthy.
func (l *Provider) checkHealth(ctx context.Context, es *entryState, it stockItem) error {
	st, err := it.sb.Status(ctx)
	switch {
	case err != nil:
		return err
	case st.State != atoll.StateRunning || !st.Ready:
		return fmt.Errorf("sandbox is %s, ready %t %s", st.State, st.Ready, st.Reason)
	case es.Spec.TTL > 0 && time.Since(it.created) > stockTTL/2:
		return errors.New("half of its ttl is over")
	}
	all, err := atoll.Processes(ctx, it.sb)
	switch {
	case atoll.KindOf(err) == atoll.ErrUnsupported:
	case err != nil:
		return err
	case len(all) > 0:
		return fmt.Errorf("a caller has run %q in it", all[0].Args)
	}
	if es.Spec.Snapshot != "" || !strings.Contains(st.Image, "sha256:") {
		return nil
	}
	digest, err := atoll.ResolveImage(ctx, l.Provider, es.Spec.Image)
	if err == nil && digest != "" && !strings.HasSuffix(st.Image, digest) {
		return fmt.Errorf("the image has changed to %s", digest)
	}
	return ctx.Err() // if the digest is unknown, the image counts as unchanged
}

// errUnusable reports that a sandbox cannot be given away; another one may do.
var errUnusable = errors.New("sandbox of the pool is unusable")

// recordClaim records the claim of a popped sandbox for spec. Kinds:
// ErrAlreadyExists (of the name), ErrConflict (it is no longer stock).
func (l *Provider) recordClaim(ctx context.Context, es *entryState, it stockItem, spec *atoll.Spec) (*store.Warm, error) {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return nil, err
	}
	w := &store.Warm{
		ID: it.sb.ID(), Project: es.Spec.Project, Scope: l.scope, Pool: es.Name, Holder: me, Made: it.created,
		Name: spec.Name, Labels: maps.Clone(spec.Labels), TTL: spec.TTL, Claimed: time.Now().Truncate(time.Millisecond),
	}
	return w, l.store.ClaimWarm(ctx, w)
}

// completeClaim checks the name and sets the TTL of a claimed sandbox. If it fails,
// the caller must remove the sandbox.
func (l *Provider) completeClaim(ctx context.Context, es *entryState, it stockItem, w *store.Warm) (atoll.Sandbox, error) {
	l.opts.onStep("claimed")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.opts.HealthTimeout) // the claim is recorded: complete or undo it
	defer cancel()
	if err := l.checkUnrecordedName(ctx, w); err != nil {
		return nil, err
	}
	if w.TTL > 0 {
		if err := atoll.Extend(ctx, it.sb, w.TTL); err != nil {
			l.log.Warn("pool: a sandbox could not be given its time to live", "pool", es.Name, "sandbox", w.ID, "err", err)
			return nil, errUnusable
		}
	}
	c := l.rememberClaim(w)
	l.mu.Lock()
	delete(l.ownStock, w.ID)
	for r := range l.watchers {
		r.unsent = append(r.unsent, c)
		wakeReceiver(r.wake)
	}
	l.mu.Unlock()
	l.opts.onStep("given")
	return l.wrapSandbox(it.sb, c), nil
}

// checkUnrecordedName returns ErrAlreadyExists if a sandbox without a record has
// the name of claim w. If the registry has a record of that sandbox, its creation
// fails instead, because the claim came first.
func (l *Provider) checkUnrecordedName(ctx context.Context, w *store.Warm) error {
	if w.Name == "" {
		return nil
	}
	unrecorded := ""
	for {
		other, err := atoll.ResolveID(ctx, l.Provider, w.Project, w.Name)
		if atoll.KindOf(err) == atoll.ErrNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		if other == unrecorded {
			return nameTakenError(w.Name, other)
		}
		if _, err = l.store.Find(ctx, other); atoll.KindOf(err) != atoll.ErrNotFound {
			return err
		}
		unrecorded = other // unless it has been removed since ResolveID, with its record
	}
}

// nameTakenError returns an ErrAlreadyExists that names the sandbox with the name.
func nameTakenError(name, id string) error {
	return atoll.Errorf("create", name, atoll.ErrAlreadyExists, "name in use by sandbox %s", id)
}

// createCold creates a sandbox for spec below. It checks the name before and after:
// a claim that was recorded first fails one of these checks, and a later claim
// finds the new sandbox.
func (l *Provider) createCold(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := l.checkNameFree(ctx, spec); err != nil {
		return nil, err
	}
	sb, err := l.Provider.Create(ctx, spec)
	if atoll.KindOf(err) == atoll.ErrExhausted && l.makeRoom(ctx) {
		sb, err = l.Provider.Create(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	undo := context.WithoutCancel(ctx)
	if IsPoolID(sb.ID()) { // the caller may have chosen the ID of a former claim
		err = l.dropRecord(undo, sb.ID())
	}
	if err == nil {
		err = l.checkNameFree(undo, spec)
	}
	if err != nil {
		return nil, errors.Join(err, sb.Remove(undo, atoll.RemoveVolumes()))
	}
	return sb, nil
}

// checkNameFree returns ErrAlreadyExists if a claim has the name of spec.
func (l *Provider) checkNameFree(ctx context.Context, spec *atoll.Spec) error {
	if spec.Name == "" {
		return nil
	}
	w, err := l.store.WarmNamed(ctx, cmp.Or(spec.Project, atoll.DefaultProject), spec.Name)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return nil
	}
	if err != nil {
		return err
	}
	if w.Scope == l.scope {
		if gone, err := l.isGone(ctx, w.ID); err == nil && gone {
			return l.dropRecord(ctx, w.ID)
		}
	}
	return nameTakenError(spec.Name, w.ID)
}

// makeRoom removes one sandbox of the stock after ErrExhausted, and pauses
// creations for exhaustedBackoff. It reports whether it removed one.
func (l *Provider) makeRoom(ctx context.Context) bool {
	l.mu.Lock()
	var from *entryState
	for _, es := range l.entries {
		if len(es.warm) > 0 && (from == nil || len(es.warm) > len(from.warm)) {
			from = es
		}
	}
	if from == nil {
		l.mu.Unlock()
		return false
	}
	it := from.warm[0]
	from.warm = slices.Delete(from.warm, 0, 1)
	for _, es := range l.entries {
		es.retryAt = time.Now().Add(exhaustedBackoff)
	}
	l.mu.Unlock()
	return l.removeStock(ctx, from, it.sb.ID()) == nil
}

// exhaustedBackoff is the pause of creations after ErrExhausted.
const exhaustedBackoff = 10 * time.Second
