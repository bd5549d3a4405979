package registry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// atOnce is how many sandboxes are worked on at the same time.
const atOnce = 8

// halfMade is how long the provider is given to clear away by itself what nobody
// goes on making: it may know that the data volume was made for it.
const halfMade = time.Minute

// Reconcile implements registry.Reconciler. In one program there is one at a time.
func (l *Provider) Reconcile(ctx context.Context, opts ReconcileOptions) (Reconciliation, error) {
	select {
	case l.rounds <- struct{}{}:
	case <-ctx.Done():
		return Reconciliation{}, ctx.Err()
	}
	defer func() { <-l.rounds }()
	id, err := l.store.Identity(ctx)
	if err != nil {
		return Reconciliation{}, err
	}
	// First what there is, then what is written down: so what is made meanwhile
	// is written down, for it is before it is made.
	there, err := l.ProviderLayer.List(ctx, atoll.Filter{})
	if err != nil {
		return Reconciliation{}, err
	}
	records, err := l.store.Records(ctx)
	if err != nil {
		return Reconciliation{}, err
	}
	r := &round{l: l, opts: opts, identity: id, digests: map[string]string{}}
	found := r.run(ctx, r.pair(records, there))
	if err := ctx.Err(); err != nil {
		return found, err
	}
	if !opts.DryRun {
		l.dropSecrets(ctx)
	}
	return found, nil
}

// A round is one Reconcile.
type round struct {
	l        *Provider
	opts     ReconcileOptions
	identity store.Identity

	mu      sync.Mutex
	digests map[string]string // by what names an image
}

// A pair is a sandbox that is written down, or there, or both.
type pair struct {
	r  *store.Record
	st *atoll.Status
}

// pair puts together what belongs together. Records of another scope count when
// their sandbox is there: the provider has got another name.
func (r *round) pair(records []*store.Record, there []atoll.Status) []pair {
	statuses := map[string]*atoll.Status{}
	for i := range there {
		statuses[there[i].ID] = &there[i]
	}
	var all []pair
	written := map[string]bool{}
	for _, rec := range records {
		written[rec.ID] = true
		if st := statuses[rec.ID]; st != nil || rec.Scope == r.l.scope {
			all = append(all, pair{rec, st})
		}
	}
	for i := range there {
		if !written[there[i].ID] {
			all = append(all, pair{nil, &there[i]})
		}
	}
	return all
}

// run looks at each, several at once.
func (r *round) run(ctx context.Context, all []pair) Reconciliation {
	type result struct {
		found   *Finding
		healthy bool
	}
	results := make([]result, len(all))
	slots := make(chan struct{}, atOnce)
	var work sync.WaitGroup
	for i, c := range all {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			defer func() { <-slots }()
			results[i].found, results[i].healthy = r.look(ctx, c)
		})
	}
	work.Wait()
	sum := Reconciliation{Findings: []Finding{}}
	for _, res := range results {
		if res.healthy {
			sum.Healthy++
		}
		if res.found != nil {
			sum.Findings = append(sum.Findings, *res.found)
		}
	}
	return sum
}

// look looks at one; what is neither found nor healthy is not for us to judge.
func (r *round) look(ctx context.Context, c pair) (found *Finding, healthy bool) {
	id, spec := "", atoll.Spec{}
	if c.r != nil {
		id, spec = c.r.ID, c.r.Spec
	} else {
		id, spec = c.st.ID, c.st.Spec
	}
	if r.opts.Except != nil && r.opts.Except(id) {
		return nil, false
	}
	unlock, ok := r.l.gate.try(id)
	if !ok {
		return nil, false
	}
	defer unlock()
	var out outcome
	var err error
	if c.r != nil {
		out, err = r.written(ctx, c)
	} else {
		out, err = r.unwritten(ctx, c.st)
	}
	for _, why := range []error{errElsewhere, store.ErrChanged, errNotOurs} {
		if errors.Is(err, why) {
			return nil, false
		}
	}
	if err == nil && out.found == "" {
		return nil, !out.gone
	}
	found = &Finding{ID: id, Name: spec.Name, Project: spec.Project, Found: out.found, Done: out.done, Reason: out.reason}
	if busy, ok := errors.AsType[busyError](err); ok {
		found.Done, found.Reason = DoneNothing, string(busy)
	} else if err != nil {
		found.Done, found.Reason, found.Failed = DoneNothing, err.Error(), true
	}
	return found, false
}

// errNotOurs says that a sandbox is another's to care for.
var errNotOurs = errors.New("not ours")

// written looks at a sandbox that is written down.
func (r *round) written(ctx context.Context, c pair) (outcome, error) {
	rec, err := r.l.store.Find(ctx, c.r.ID) // it may have changed since
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return outcome{gone: true}, nil
	}
	if err != nil {
		return outcome{found: FoundUnfinished}, err
	}
	if rec.Scope != r.l.scope && !r.opts.DryRun {
		rec.Scope = r.l.scope
		if err := r.l.store.Update(ctx, rec); err != nil {
			return outcome{found: FoundUnknown}, err
		}
	}
	if rec.State == store.Creating && c.st != nil && c.st.State == atoll.StateCreating && time.Since(rec.Created).Abs() < halfMade {
		return outcome{}, errNotOurs
	}
	if c.st == nil || rec.State != store.Present {
		return r.l.settle(ctx, rec, r.opts.DryRun)
	}
	if err := r.l.free(ctx, rec); err != nil {
		return outcome{}, err
	}
	if c.st.State == atoll.StateFailed {
		return r.failed(ctx, rec, *c.st)
	}
	return r.current(ctx, rec, *c.st)
}

// failed looks at a sandbox that has failed.
func (r *round) failed(ctx context.Context, rec *store.Record, st atoll.Status) (outcome, error) {
	if st.Spec.AutoRemove {
		return outcome{}, nil
	}
	out := outcome{found: FoundFailed, done: DoneNothing, reason: st.Reason}
	switch r.l.opts.Failed {
	case Restart:
		out.done = DoneRestarted
	case Rebuild:
		if st.Spec.TTL > 0 { // it would begin anew
			out.reason = strings.TrimPrefix(out.reason+"; its time is limited, so it is not rebuilt", "; ")
			break
		}
		out.done = DoneRebuilt
	}
	switch {
	case r.opts.DryRun || out.done == DoneNothing:
		return out, nil
	case out.done == DoneRebuilt:
		return out, r.l.rebuild(ctx, rec, st, true)
	}
	sb, err := r.l.ProviderLayer.Get(ctx, rec.ID)
	if err == nil {
		err = sb.Start(ctx)
	}
	return out, err
}

// current looks at whether a sandbox's image is.
func (r *round) current(ctx context.Context, rec *store.Record, st atoll.Status) (outcome, error) {
	if st.Spec.AutoRemove || st.Spec.TTL > 0 || st.State == atoll.StateCreating { // it goes by itself, or comes
		return outcome{}, nil
	}
	out := outcome{found: FoundOutdated, done: DoneRebuilt}
	digest, err := r.digest(ctx, rec.Spec.Image)
	if err != nil {
		return out, err
	}
	if !outdated(&rec.Spec, st.Image, digest) {
		return outcome{}, nil
	}
	out.reason = "its image is " + digest + " by now"
	if r.l.opts.Outdated == Keep {
		out.done = DoneNothing
		return out, nil
	}
	if r.opts.DryRun {
		if !r.opts.Force {
			err = r.wouldWait(ctx, rec.ID, st.State)
		}
		return out, err
	}
	return out, r.l.rebuild(ctx, rec, st, r.opts.Force)
}

// wouldWait is the busyError that a rebuild would have.
func (r *round) wouldWait(ctx context.Context, id string, state atoll.State) error {
	sb, err := r.l.ProviderLayer.Get(ctx, id)
	if err != nil {
		return err
	}
	return idle(ctx, sb, state)
}

// digest is that of an image as it is kept here; "" when that is not known.
func (r *round) digest(ctx context.Context, ref string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if digest, ok := r.digests[ref]; ok {
		return digest, nil
	}
	digest, err := atoll.ResolveImage(ctx, r.l.ProviderLayer, ref)
	switch atoll.KindOf(err) {
	case "", atoll.ErrUnsupported, atoll.ErrNotExist, atoll.ErrInvalid:
		r.digests[ref] = digest
		return digest, nil
	}
	return "", err
}

// unwritten looks at a sandbox that is not written down.
func (r *round) unwritten(ctx context.Context, st *atoll.Status) (outcome, error) {
	l, ours := r.l, isOurs(r.identity, st.ID, st.Spec.Env)
	out := outcome{found: FoundUnknown, done: DoneAdopted, reason: "it is older than what is written down"}
	if ours {
		out.found, out.reason = FoundOrphan, "it is not written down"
	}
	state, back := store.Present, false
	var err error
	if ours {
		if back, err = l.store.Forgotten(ctx, st.ID); err != nil {
			return out, err
		}
	}
	switch {
	case back:
		out.reason = "it had gone, and is back"
	case ours && l.opts.Orphans == Remove && l.Info().Caps.Survives:
		state, out.done, out.gone = store.Removing, DoneRemoved, true
	}
	switch {
	case st.Spec.AutoRemove, st.State == atoll.StateCreating, !ours && !st.Created.Before(r.identity.Born):
		return outcome{}, errNotOurs
	case r.opts.DryRun:
		return out, nil
	}
	sb, err := l.ProviderLayer.Get(ctx, st.ID)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return outcome{}, errNotOurs // it was being removed
	}
	if err != nil {
		return out, err
	}
	rec := &store.Record{ID: st.ID, Scope: l.scope, Provider: st.Provider, Spec: st.Spec, State: state, Created: time.Now()}
	rec.Spec.Env = slices.Clone(unmarked(st.Spec.Env))
	if state == store.Removing || !st.Caps.Survives {
		if rec.Holder, err = l.store.Holder(ctx); err != nil {
			return out, err
		}
	}
	if _, err := l.store.Insert(ctx, rec, "", store.Room{}); err != nil {
		if _, findErr := l.store.Find(ctx, rec.ID); findErr == nil {
			return outcome{}, errNotOurs // somebody has written it down meanwhile
		}
		return out, err
	}
	if state == store.Present {
		return out, nil
	}
	return out, l.finishRemoval(ctx, rec, sb)
}

// dropSecrets deletes the secrets of sandboxes of which nothing is left, neither
// a record nor a data volume.
func (l *Provider) dropSecrets(ctx context.Context) {
	ids, err := l.store.Abandoned(ctx, l.scope)
	if err != nil || len(ids) == 0 {
		l.warn("secrets", err)
		return
	}
	volumes, err := atoll.Volumes(ctx, l.Provider, "")
	if err != nil { // there is no telling which are needed
		if atoll.KindOf(err) != atoll.ErrUnsupported {
			l.warn("secrets", err)
		}
		return
	}
	for _, id := range ids {
		if !slices.ContainsFunc(volumes, func(v atoll.Volume) bool { return v.Sandbox == id }) {
			l.warn("secrets", l.store.DropSecret(ctx, id))
		}
	}
}

func (l *Provider) warn(what string, err error) {
	if err != nil {
		l.log.Warn(what, "err", err)
	}
}
