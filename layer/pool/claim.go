package pool

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A claim is the immutable record of a sandbox that a caller took out of a pool.
type claim struct{ record *store.Warm }

// applyToStatus sets the spec and the times of st from the claim.
func (c *claim) applyToStatus(st *atoll.Status) {
	c.applyToSpec(&st.Spec)
	st.Created = c.record.Claimed
	if st.Started.Before(st.Created) && !st.Started.IsZero() {
		st.Started = st.Created
	}
}

// applyToSpec sets the name, labels and TTL of spec from the claim.
func (c *claim) applyToSpec(spec *atoll.Spec) {
	spec.Name, spec.Labels, spec.TTL = c.record.Name, maps.Clone(c.record.Labels), c.record.TTL
}

// rememberClaim caches w, unless a claim with its ID is cached already, and returns
// the cached claim.
func (l *Provider) rememberClaim(w *store.Warm) *claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.knownClaims[w.ID]
	if c == nil {
		c = &claim{w}
		l.knownClaims[w.ID] = c
	}
	return c
}

// lookUpClaim returns the claim of the sandbox with a canonical ID. c is nil if the
// sandbox is not claimed. hidden reports whether it is stock, of this or another
// program.
func (l *Provider) lookUpClaim(ctx context.Context, id string) (c *claim, hidden bool, err error) {
	if !IsPoolID(id) {
		return nil, false, nil
	}
	if c, hidden = l.cachedClaim(id); c != nil || hidden {
		return c, hidden, nil
	}
	w, err := l.store.FindWarm(ctx, id)
	if atoll.KindOf(err) == atoll.ErrNotExist || err == nil && w.Scope != l.scope {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if w.Claimed.IsZero() {
		return nil, true, nil
	}
	return l.rememberClaim(w), false, nil
}

// cachedClaim is lookUpClaim without the store: it knows only this program's stock
// and the claims that it has seen.
func (l *Provider) cachedClaim(id string) (c *claim, hidden bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, hidden = l.ownStock[id]
	return l.knownClaims[id], hidden
}

// Get implements atoll.Provider.
func (l *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := l.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	c, hidden, err := l.lookUpClaim(ctx, sb.ID())
	switch {
	case err != nil:
		return nil, err
	case hidden:
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	case c != nil:
		return l.wrapSandbox(sb, c), nil
	}
	return sb, nil
}

// Resolve implements atoll.Resolver.
func (l *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	id, err := atoll.ResolveID(ctx, l.Provider, project, name)
	if err == nil {
		_, hidden, err := l.lookUpClaim(ctx, id) // name may be an id
		if err == nil && hidden {
			err = atoll.E("get", name, atoll.ErrNotFound, nil)
		}
		return id, err
	}
	if atoll.KindOf(err) != atoll.ErrNotFound {
		return "", err
	}
	w, findErr := l.store.WarmNamed(ctx, cmp.Or(project, atoll.DefaultProject), name)
	switch {
	case findErr != nil && atoll.KindOf(findErr) != atoll.ErrNotExist:
		return "", findErr
	case findErr != nil || w.Scope != l.scope:
		return "", err
	}
	if _, err := l.Provider.Get(ctx, w.ID); err != nil {
		return "", err
	}
	l.rememberClaim(w)
	return w.ID, nil
}

// List implements atoll.Provider.
func (l *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	below := f
	below.Name, below.Labels = "", nil // the provider below does not know those of claims
	all, err := l.Provider.List(ctx, below)
	if err != nil {
		return nil, err
	}
	if err := l.loadClaims(ctx, all); err != nil {
		return nil, err
	}
	shown := all[:0]
	for _, st := range all {
		c, hidden, err := l.lookUpClaim(ctx, st.ID)
		if err != nil {
			return nil, err
		}
		if c != nil {
			c.applyToStatus(&st)
		}
		if !hidden && f.Match(st) {
			shown = append(shown, st)
		}
	}
	slices.SortStableFunc(shown, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return shown, nil
}

// loadClaims caches all claims of the store, in one query, if any sandbox of all
// may have an unknown one.
func (l *Provider) loadClaims(ctx context.Context, all []atoll.Status) error {
	unknown := func(st atoll.Status) bool {
		c, hidden := l.cachedClaim(st.ID)
		return IsPoolID(st.ID) && c == nil && !hidden
	}
	if !slices.ContainsFunc(all, unknown) {
		return nil
	}
	warm, err := l.store.Warm(ctx, l.scope)
	for _, w := range warm {
		if !w.Claimed.IsZero() {
			l.rememberClaim(w)
		}
	}
	return err
}

// Watch implements atoll.Provider. A sandbox of the stock appears when this program
// claims it. If another program claims it, it appears with its next change, or in
// the next Watch.
func (l *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		r := &watcher{
			l: l, ctx: ctx, yield: yield, hidden: map[string]atoll.Event{}, claims: map[string]*claim{},
			wake: make(chan struct{}, 1),
		}
		l.mu.Lock()
		l.watchers[r] = struct{}{}
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			delete(l.watchers, r)
			l.mu.Unlock()
		}()
		events, done := make(chan watchResult), make(chan struct{})
		go func() {
			defer close(done)
			for ev, err := range l.Provider.Watch(ctx) {
				select {
				case events <- watchResult{ev, err}:
				case <-ctx.Done():
					if err == nil {
						return // the loop below yields the error, if the caller still reads
					}
				}
			}
		}()
		defer func() { cancel(); <-done }()
		for {
			select {
			case e := <-events:
				if !r.sendClaimed() || !r.forwardEvent(e) {
					return
				}
			case <-r.wake:
				if !r.sendClaimed() {
					return
				}
			case <-done:
				if err := ctx.Err(); err != nil {
					yield(atoll.Event{}, err)
				}
				return
			}
		}
	}
}

// A watchResult is one event or error of the provider's Watch.
type watchResult struct {
	ev  atoll.Event
	err error
}

// A watcher is the state of one call of Watch.
type watcher struct {
	l      *Provider
	ctx    context.Context
	yield  func(atoll.Event, error) bool
	hidden map[string]atoll.Event // the last event of each sandbox of the stock
	claims map[string]*claim      // the claim of each sandbox that was yielded or claimed
	wake   chan struct{}          // receives after unsent has grown; capacity 1

	unsent []*claim // claims of this program that sendClaimed has not seen; guarded by l.mu
}

// forwardEvent yields e unless it is about stock. It returns false when Watch must
// return.
func (r *watcher) forwardEvent(e watchResult) bool {
	id := e.ev.Status.ID
	if e.err != nil || e.ev.Type != atoll.EventState {
		return r.yield(e.ev, e.err) && e.err == nil
	}
	c, hidden, err := r.l.lookUpClaim(r.ctx, id)
	if err != nil {
		r.yield(atoll.Event{}, err)
		return false
	}
	if c == nil {
		c = r.claims[id] // the record may be deleted already
	}
	removed := e.ev.Status.State == atoll.StateRemoved
	if _, was := r.hidden[id]; c == nil && (hidden || was) {
		r.hidden[id] = e.ev
		if removed {
			delete(r.hidden, id)
		}
		return true
	}
	return r.sendEvent(c, e.ev)
}

// sendEvent yields ev with c applied; c may be nil.
func (r *watcher) sendEvent(c *claim, ev atoll.Event) bool {
	id := ev.Status.ID
	delete(r.hidden, id)
	if c != nil {
		c.applyToStatus(&ev.Status)
		r.claims[id] = c
		if ev.Status.State == atoll.StateRemoved {
			delete(r.claims, id)
		}
	}
	return r.yield(ev, nil)
}

// sendClaimed yields the last event of each hidden sandbox that this program has
// claimed since the last call, even if the claim is deleted already. It returns
// false when Watch must return.
func (r *watcher) sendClaimed() bool {
	r.l.mu.Lock()
	claims := r.unsent
	r.unsent = nil
	r.l.mu.Unlock()
	for _, c := range claims {
		id := c.record.ID
		r.claims[id] = c // its events may still be to come
		ev, was := r.hidden[id]
		if !was {
			continue
		}
		ev.Time = c.record.Claimed
		if !r.sendEvent(c, ev) {
			return false
		}
	}
	return true
}

// Secret implements atoll.SecretKeeper.
func (l *Provider) Secret(ctx context.Context, id string) (string, error) {
	if norm, err := atoll.NormalizeID(id); err == nil {
		if _, hidden, err := l.lookUpClaim(ctx, norm); err != nil || hidden {
			return "", cmp.Or(err, atoll.E("secret", id, atoll.ErrNotFound, nil))
		}
	}
	return atoll.SecretOf(ctx, l.Provider, id)
}

// Volumes implements atoll.VolumeStore.
func (l *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	all, err := atoll.Volumes(ctx, l.Provider, project)
	if err != nil {
		return nil, err
	}
	shown := all[:0]
	for _, v := range all {
		_, hidden, err := l.lookUpClaim(ctx, v.Sandbox)
		if err != nil {
			return nil, err
		}
		if !hidden {
			shown = append(shown, v)
		}
	}
	return shown, nil
}

// Snapshots implements atoll.SnapshotStore.
func (l *Provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	all, err := atoll.Snapshots(ctx, l.Provider)
	for i := range all {
		c, _, err := l.lookUpClaim(ctx, all[i].Sandbox)
		if err != nil {
			return nil, err
		}
		if c != nil {
			c.applyToSpec(&all[i].Spec)
		}
	}
	return all, err
}

// Reconcile implements registry.Reconciler. It excludes stock, which this layer
// maintains. Unless it is a dry run, it first deletes the records that dead
// programs have left, so that the registry finds their unfinished sandboxes.
func (l *Provider) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	if !opts.DryRun {
		if err := l.sweepRecords(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("pool: cannot remove stock of dead programs", "err", err)
		}
	}
	except := opts.Except
	opts.Except = func(id string) bool {
		_, hidden, err := l.lookUpClaim(ctx, id)
		return hidden || err != nil || except != nil && except(id) // if the claim is unknown, leave the sandbox alone
	}
	return registry.Reconcile(ctx, l.Provider, opts)
}

// RemoveProject implements atoll.ProjectRemover.
func (l *Provider) RemoveProject(ctx context.Context, project string) error {
	if err := atoll.RemoveProject(ctx, l.Provider, project); err != nil {
		return err
	}
	all, err := l.store.Warm(ctx, l.scope)
	if err != nil {
		return err
	}
	for _, w := range all {
		if w.Project == project && !w.Claimed.IsZero() {
			if err := l.settleClaim(ctx, w); err != nil {
				return err
			}
		}
	}
	wakeReceiver(l.recheck) // the project's stock is gone as well
	return nil
}

// A sandbox is a claimed sandbox.
type sandbox struct {
	atoll.SandboxLayer
	l *Provider
	c *claim
}

func (l *Provider) wrapSandbox(sb atoll.Sandbox, c *claim) atoll.Sandbox {
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, l, c}
}

// claimIsCurrent reports whether the claim still exists. A new sandbox may have the
// same ID.
func (s *sandbox) claimIsCurrent() bool {
	c, _ := s.l.cachedClaim(s.ID())
	return c == s.c
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	if err == nil && s.claimIsCurrent() {
		s.c.applyToStatus(&st)
	}
	return st, err
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context, opts ...atoll.SnapshotOption) (atoll.Snapshot, error) {
	snap, err := atoll.TakeSnapshot(ctx, s.Sandbox, opts...)
	if err == nil && s.claimIsCurrent() {
		s.c.applyToSpec(&snap.Spec)
	}
	return snap, err
}

// Remove implements atoll.Sandbox. It also deletes the claim, which frees the name.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.SandboxLayer.Remove(ctx, opts...); err != nil || !s.claimIsCurrent() {
		return err
	}
	return s.l.dropRecord(ctx, s.ID())
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (l *Provider) RemoveSnapshot(ctx context.Context, id string) error {
	return atoll.RemoveSnapshot(ctx, l.Provider, id)
}

// RemoveVolume implements atoll.VolumeStore.
func (l *Provider) RemoveVolume(ctx context.Context, project, name string) error {
	return atoll.RemoveVolume(ctx, l.Provider, project, name)
}

var (
	_ atoll.Sandbox     = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
