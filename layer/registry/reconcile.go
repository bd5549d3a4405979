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

// maxConcurrent limits the sandboxes that Reconcile works on at the same time.
const maxConcurrent = 8

// creationGrace is the time that a provider has to clean up an abandoned creation
// itself. Only the provider may know whether the data volume was created with it.
const creationGrace = time.Minute

// Reconcile implements registry.Reconciler. Concurrent calls in one program run one
// after another.
func (l *Provider) Reconcile(ctx context.Context, opts ReconcileOptions) (Reconciliation, error) {
	select {
	case l.reconciling <- struct{}{}:
	case <-ctx.Done():
		return Reconciliation{}, ctx.Err()
	}
	defer func() { <-l.reconciling }()
	id, err := l.store.Identity(ctx)
	if err != nil {
		return Reconciliation{}, err
	}
	// List before reading the records: a sandbox has a record before it exists, so
	// one that is created meanwhile is not taken for an orphan.
	statuses, err := l.ProviderLayer.List(ctx, atoll.Filter{})
	if err != nil {
		return Reconciliation{}, err
	}
	records, err := l.store.Records(ctx)
	if err != nil {
		return Reconciliation{}, err
	}
	r := &reconcileRun{l: l, opts: opts, identity: id, digests: map[string]string{}}
	found := r.checkAll(ctx, r.matchRecords(records, statuses))
	if err := ctx.Err(); err != nil {
		return found, err
	}
	if !opts.DryRun {
		l.dropSecrets(ctx)
	}
	return found, nil
}

// A reconcileRun is one call of Reconcile.
type reconcileRun struct {
	l        *Provider
	opts     ReconcileOptions
	identity store.Identity

	mu      sync.Mutex
	digests map[string]string // by image reference
}

// A candidate is a sandbox with a record, a status, or both.
type candidate struct {
	record *store.Record
	status *atoll.Status
}

// matchRecords pairs records and statuses by ID. It includes a record of another
// scope if its sandbox exists: the provider has changed its name.
func (r *reconcileRun) matchRecords(records []*store.Record, statuses []atoll.Status) []candidate {
	byID := map[string]*atoll.Status{}
	for i := range statuses {
		byID[statuses[i].ID] = &statuses[i]
	}
	var all []candidate
	recorded := map[string]bool{}
	for _, rec := range records {
		recorded[rec.ID] = true
		if st := byID[rec.ID]; st != nil || rec.Scope == r.l.scope {
			all = append(all, candidate{rec, st})
		}
	}
	for i := range statuses {
		if !recorded[statuses[i].ID] {
			all = append(all, candidate{nil, &statuses[i]})
		}
	}
	return all
}

// checkAll checks all candidates, up to maxConcurrent at once.
func (r *reconcileRun) checkAll(ctx context.Context, all []candidate) Reconciliation {
	type result struct {
		found   *Finding
		healthy bool
	}
	results := make([]result, len(all))
	slots := make(chan struct{}, maxConcurrent)
	var work sync.WaitGroup
	for i, c := range all {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			defer func() { <-slots }()
			results[i].found, results[i].healthy = r.checkOne(ctx, c)
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

// checkOne checks one candidate. It returns nil and false if the sandbox is not
// this program's to judge.
func (r *reconcileRun) checkOne(ctx context.Context, c candidate) (found *Finding, healthy bool) {
	id, spec := "", atoll.Spec{}
	if c.record != nil {
		id, spec = c.record.ID, c.record.Spec
	} else {
		id, spec = c.status.ID, c.status.Spec
	}
	if r.opts.Except != nil && r.opts.Except(id) {
		return nil, false
	}
	unlock, ok := r.l.locks.tryLock(id)
	if !ok {
		return nil, false
	}
	defer unlock()
	var out outcome
	var err error
	if c.record != nil {
		out, err = r.checkRecorded(ctx, c)
	} else {
		out, err = r.checkUnrecorded(ctx, c.status)
	}
	for _, why := range []error{errHeldElsewhere, store.ErrChanged, errNotOurs} {
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

// errNotOurs reports that another program manages a sandbox.
var errNotOurs = errors.New("managed elsewhere")

// checkRecorded checks a sandbox that has a record.
func (r *reconcileRun) checkRecorded(ctx context.Context, c candidate) (outcome, error) {
	rec, err := r.l.store.Find(ctx, c.record.ID) // read again under the lock
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
	if rec.State == store.Creating && c.status != nil && c.status.State == atoll.StateCreating && time.Since(rec.Created).Abs() < creationGrace {
		return outcome{}, errNotOurs
	}
	if c.status == nil || rec.State != store.Present {
		return r.l.settleLocked(ctx, rec, r.opts.DryRun)
	}
	if err := r.l.checkHolder(ctx, rec); err != nil {
		return outcome{}, err
	}
	if c.status.State == atoll.StateFailed {
		return r.checkFailed(ctx, rec, *c.status)
	}
	return r.checkImage(ctx, rec, *c.status)
}

// checkFailed checks a sandbox in StateFailed.
func (r *reconcileRun) checkFailed(ctx context.Context, rec *store.Record, st atoll.Status) (outcome, error) {
	if st.Spec.AutoRemove {
		return outcome{}, nil
	}
	out := outcome{found: FoundFailed, done: DoneNothing, reason: st.Reason}
	switch r.l.opts.Failed {
	case Restart:
		out.done = DoneRestarted
	case Rebuild:
		if st.Spec.TTL > 0 { // a rebuild would restart the TTL
			out.reason = strings.TrimPrefix(out.reason+"; not rebuilt, because it has a ttl", "; ")
			break
		}
		out.done = DoneRebuilt
	}
	switch {
	case r.opts.DryRun || out.done == DoneNothing:
		return out, nil
	case out.done == DoneRebuilt:
		return out, r.l.rebuildSandbox(ctx, rec, st, true)
	}
	sb, err := r.l.ProviderLayer.Get(ctx, rec.ID)
	if err == nil {
		err = sb.Start(ctx)
	}
	return out, err
}

// checkImage checks whether the image of a sandbox is current.
func (r *reconcileRun) checkImage(ctx context.Context, rec *store.Record, st atoll.Status) (outcome, error) {
	if st.Spec.AutoRemove || st.Spec.TTL > 0 || st.State == atoll.StateCreating { // it ends by itself, or is not ready
		return outcome{}, nil
	}
	out := outcome{found: FoundOutdated, done: DoneRebuilt}
	digest, err := r.resolveDigest(ctx, rec.Spec.Image)
	if err != nil {
		return out, err
	}
	if !isOutdated(&rec.Spec, st.Image, digest) {
		return outcome{}, nil
	}
	out.reason = "the image is now " + digest
	if r.l.opts.Outdated == Keep {
		out.done = DoneNothing
		return out, nil
	}
	if r.opts.DryRun {
		if !r.opts.Force {
			err = r.checkBusy(ctx, rec.ID, st.State)
		}
		return out, err
	}
	return out, r.l.rebuildSandbox(ctx, rec, st, r.opts.Force)
}

// checkBusy returns the busyError that a rebuild would return.
func (r *reconcileRun) checkBusy(ctx context.Context, id string, state atoll.State) error {
	sb, err := r.l.ProviderLayer.Get(ctx, id)
	if err != nil {
		return err
	}
	return checkIdle(ctx, sb, state)
}

// resolveDigest returns the digest of the local image that ref names; "" if it is
// unknown.
func (r *reconcileRun) resolveDigest(ctx context.Context, ref string) (string, error) {
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

// checkUnrecorded checks a sandbox without a record.
func (r *reconcileRun) checkUnrecorded(ctx context.Context, st *atoll.Status) (outcome, error) {
	l, ours := r.l, madeWithStore(r.identity, &st.Spec, st.ID)
	out := outcome{found: FoundUnknown, done: DoneAdopted, reason: "the sandbox is older than the registry"}
	if ours {
		out.found, out.reason = FoundOrphan, "the sandbox has no record"
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
		out.reason = "the sandbox was missing, and is back"
	case ours && l.opts.Orphans == Remove && l.Info().Caps.Survives:
		state, out.done, out.gone = store.Removing, DoneRemoved, true
	}
	switch {
	case st.Spec.AutoRemove, st.State == atoll.StateCreating, !ours && !st.Created.Before(r.identity.Created):
		return outcome{}, errNotOurs
	case r.opts.DryRun:
		return out, nil
	}
	sb, err := l.ProviderLayer.Get(ctx, st.ID)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return outcome{}, errNotOurs // a removal has just ended
	}
	if err != nil {
		return out, err
	}
	rec := &store.Record{ID: st.ID, Scope: l.scope, Provider: st.Provider, Spec: st.Spec, State: state, Created: time.Now()}
	rec.Spec.System = systemOfOthers(&st.Spec)
	if state == store.Removing || !st.Caps.Survives {
		if rec.Holder, err = l.store.Holder(ctx); err != nil {
			return out, err
		}
	}
	if _, err := l.store.Insert(ctx, rec, "", store.Limits{}); err != nil {
		if _, findErr := l.store.Find(ctx, rec.ID); findErr == nil {
			return outcome{}, errNotOurs // another program has recorded it meanwhile
		}
		return out, err
	}
	if state == store.Present {
		return out, nil
	}
	return out, l.finishRemoval(ctx, rec, sb)
}

// dropSecrets deletes the secrets of sandboxes that have neither a record nor a
// data volume.
func (l *Provider) dropSecrets(ctx context.Context) {
	ids, err := l.store.Abandoned(ctx, l.scope)
	if err != nil || len(ids) == 0 {
		l.logWarning("secrets", err)
		return
	}
	volumes, err := atoll.Volumes(ctx, l.Provider, "")
	if err != nil { // unknown which secrets are needed
		if atoll.KindOf(err) != atoll.ErrUnsupported {
			l.logWarning("secrets", err)
		}
		return
	}
	for _, id := range ids {
		if !slices.ContainsFunc(volumes, func(v atoll.Volume) bool { return v.Sandbox == id }) {
			l.logWarning("secrets", l.store.DropSecret(ctx, id))
		}
	}
}

// logWarning logs err, unless it is nil.
func (l *Provider) logWarning(what string, err error) {
	if err != nil {
		l.log.Warn(what, "err", err)
	}
}
