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

// A claim is a sandbox of a pool that somebody has. It never changes.
type claim struct{ w *store.Warm }

// show gives st what the claim has given its sandbox.
func (c *claim) show(st *atoll.Status) {
	c.dress(&st.Spec)
	st.Created = c.w.Claimed // it was nobody's before
	if st.Started.Before(st.Created) && !st.Started.IsZero() {
		st.Started = st.Created
	}
}

func (c *claim) dress(spec *atoll.Spec) {
	spec.Name, spec.Labels, spec.TTL = c.w.Name, maps.Clone(c.w.Labels), c.w.TTL
}

// heard remembers a claim.
func (l *Provider) heard(w *store.Warm) *claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.known[w.ID]
	if c == nil {
		c = &claim{w}
		l.known[w.ID] = c
	}
	return c
}

// standing says what a sandbox is, by its id in canonical form: hidden if it is
// stock, that of others included; claimed, if c is not nil; or none of the pools'.
func (l *Provider) standing(ctx context.Context, id string) (c *claim, hidden bool, err error) {
	if !isOurs(id) {
		return nil, false, nil
	}
	if c, hidden = l.remembered(id); c != nil || hidden {
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
	return l.heard(w), false, nil
}

// remembered is standing, as far as it is known without the store.
func (l *Provider) remembered(id string) (c *claim, hidden bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, hidden = l.mine[id]
	return l.known[id], hidden
}

// Get implements atoll.Provider.
func (l *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := l.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	c, hidden, err := l.standing(ctx, sb.ID())
	switch {
	case err != nil:
		return nil, err
	case hidden:
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	case c != nil:
		return l.wrap(sb, c), nil
	}
	return sb, nil
}

// Resolve implements atoll.Resolver.
func (l *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	id, err := atoll.ResolveID(ctx, l.Provider, project, name)
	if err == nil {
		_, hidden, err := l.standing(ctx, id) // name may be an id
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
	l.heard(w)
	return w.ID, nil
}

// List implements atoll.Provider.
func (l *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	below := f
	below.Name, below.Labels = "", nil // those of claims are not known there
	all, err := l.Provider.List(ctx, below)
	if err != nil {
		return nil, err
	}
	if err := l.hear(ctx, all); err != nil {
		return nil, err
	}
	shown := all[:0]
	for _, st := range all {
		c, hidden, err := l.standing(ctx, st.ID)
		if err != nil {
			return nil, err
		}
		if c != nil {
			c.show(&st)
		}
		if !hidden && f.Match(st) {
			shown = append(shown, st)
		}
	}
	slices.SortStableFunc(shown, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return shown, nil
}

// hear asks the store once for all claims, if there is any that is not known.
func (l *Provider) hear(ctx context.Context, all []atoll.Status) error {
	unknown := func(st atoll.Status) bool {
		c, hidden := l.remembered(st.ID)
		return isOurs(st.ID) && c == nil && !hidden
	}
	if !slices.ContainsFunc(all, unknown) {
		return nil
	}
	warm, err := l.store.Warm(ctx, l.scope)
	for _, w := range warm {
		if !w.Claimed.IsZero() {
			l.heard(w)
		}
	}
	return err
}

// Watch implements atoll.Provider. Stock begins to be there when it is claimed by
// this program; what others claim is told with its next change, or to who watches
// again.
func (l *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		claimed := make(chan struct{}, 1)
		l.mu.Lock()
		l.readers[claimed] = struct{}{}
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			delete(l.readers, claimed)
			l.mu.Unlock()
		}()
		ctx, cancel := context.WithCancel(ctx)
		r := &reader{l: l, ctx: ctx, yield: yield, hidden: map[string]atoll.Event{}, shown: map[string]*claim{}}
		events, done := make(chan told), make(chan struct{})
		go func() {
			defer close(done)
			for ev, err := range l.Provider.Watch(ctx) {
				select {
				case events <- told{ev, err}:
				case <-ctx.Done():
					if err == nil {
						return // nobody reads any more, or is told below
					}
				}
			}
		}()
		defer func() { cancel(); <-done }()
		for {
			select {
			case e := <-events:
				if !r.tell(e) {
					return
				}
			case <-claimed:
				if !r.reveal() {
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

// told is what a Watch yields.
type told struct {
	ev  atoll.Event
	err error
}

// A reader is one Watch.
type reader struct {
	l      *Provider
	ctx    context.Context
	yield  func(atoll.Event, error) bool
	hidden map[string]atoll.Event // the last that was heard of stock
	shown  map[string]*claim      // of what was told
}

// tell passes on what is told of others than stock. It returns false at the end.
func (r *reader) tell(e told) bool {
	id := e.ev.Status.ID
	if e.err != nil || e.ev.Type != atoll.EventState {
		return r.yield(e.ev, e.err) && e.err == nil
	}
	c, hidden, err := r.l.standing(r.ctx, id)
	if err != nil {
		r.yield(atoll.Event{}, err)
		return false
	}
	if c == nil {
		c = r.shown[id] // it may be off the books by now
	}
	removed := e.ev.Status.State == atoll.StateRemoved
	if _, was := r.hidden[id]; c == nil && (hidden || was) {
		r.hidden[id] = e.ev
		if removed {
			delete(r.hidden, id)
		}
		return true
	}
	return r.show(c, e.ev)
}

// show yields what is told of a sandbox that is no stock.
func (r *reader) show(c *claim, ev atoll.Event) bool {
	id := ev.Status.ID
	delete(r.hidden, id)
	if c != nil {
		c.show(&ev.Status)
		r.shown[id] = c
		if ev.Status.State == atoll.StateRemoved {
			delete(r.shown, id)
		}
	}
	return r.yield(ev, nil)
}

// reveal tells of stock that has been claimed.
func (r *reader) reveal() bool {
	for id, ev := range r.hidden {
		c, _ := r.l.remembered(id)
		if c == nil {
			continue
		}
		ev.Time = c.w.Claimed
		if !r.show(c, ev) {
			return false
		}
	}
	return true
}

// Secret implements atoll.SecretKeeper.
func (l *Provider) Secret(ctx context.Context, id string) (string, error) {
	if norm, err := atoll.NormalizeID(id); err == nil {
		if _, hidden, err := l.standing(ctx, norm); err != nil || hidden {
			return "", cmp.Or(err, atoll.E("secret", id, atoll.ErrNotFound, nil))
		}
	}
	return atoll.Secret(ctx, l.Provider, id)
}

// Volumes implements atoll.VolumeStore.
func (l *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	all, err := atoll.Volumes(ctx, l.Provider, project)
	if err != nil {
		return nil, err
	}
	shown := all[:0]
	for _, v := range all {
		_, hidden, err := l.standing(ctx, v.Sandbox)
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
		c, _, err := l.standing(ctx, all[i].Sandbox)
		if err != nil {
			return nil, err
		}
		if c != nil {
			c.dress(&all[i].Spec)
		}
	}
	return all, err
}

// Reconcile implements registry.Reconciler. Stock is not counted: the layer looks after
// it. First it takes off the books what programs have left that have gone, so that what
// they had half made is found, too.
func (l *Provider) Reconcile(ctx context.Context, opts registry.ReconcileOptions) (registry.Reconciliation, error) {
	if !opts.DryRun {
		if err := l.sweep(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("pool: what others have left is not removed yet", "err", err)
		}
	}
	except := opts.Except
	opts.Except = func(id string) bool {
		_, hidden, err := l.standing(ctx, id)
		return hidden || err != nil || except != nil && except(id) // who does not know leaves it alone
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
			if err := l.settle(ctx, w); err != nil {
				return err
			}
		}
	}
	poke(l.check) // its stock is gone as well
	return nil
}

// A sandbox is one that was claimed.
type sandbox struct {
	atoll.SandboxLayer
	l *Provider
	c *claim
}

func (l *Provider) wrap(sb atoll.Sandbox, c *claim) atoll.Sandbox {
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, l, c}
}

// current reports whether the claim still stands: the id may be that of another
// sandbox by now.
func (s *sandbox) current() bool {
	c, _ := s.l.remembered(s.ID())
	return c == s.c
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	if err == nil && s.current() {
		s.c.show(&st)
	}
	return st, err
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	snap, err := atoll.TakeSnapshot(ctx, s.Sandbox)
	if err == nil && s.current() {
		s.c.dress(&snap.Spec)
	}
	return snap, err
}

// Remove implements atoll.Sandbox. Its name is free afterwards.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.SandboxLayer.Remove(ctx, opts...); err != nil || !s.current() {
		return err
	}
	return s.l.forget(ctx, s.ID())
}

// RemoveSnapshot forwards.
func (l *Provider) RemoveSnapshot(ctx context.Context, id string) error {
	return atoll.RemoveSnapshot(ctx, l.Provider, id)
}

// RemoveVolume forwards.
func (l *Provider) RemoveVolume(ctx context.Context, project, name string) error {
	return atoll.RemoveVolume(ctx, l.Provider, project, name)
}

var (
	_ atoll.Sandbox     = (*sandbox)(nil)
	_ atoll.Snapshotter = (*sandbox)(nil)
)
