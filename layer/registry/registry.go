// Package registry is a layer that records the desired sandboxes in a store that
// outlives every program.
//
//	p = registry.New(p, sqlite.New(path), registry.Options{Server: true})
//	found, err := registry.Reconcile(ctx, p, registry.ReconcileOptions{})
//
// The layer records each change of a sandbox before it asks the provider for it, and
// records the result afterwards. Another program finishes a change whose program has
// ended. Each sandbox has a secret, which only the store holds; see package secret.
//
// Commands, files and other work inside a sandbox never wait for the store.
package registry

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/secret"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Options say what Reconcile does about what it finds. The zero value is for
// programs that come and go.
type Options struct {
	// Orphans: sandboxes that this store's programs made, and that are not written
	// down. Those that others made are left alone.
	Orphans Policy // Remove (default), or Keep, which writes them down
	Failed  Policy // Keep (default), Restart, or Rebuild those without a TTL
	// Outdated: sandboxes whose image's name stands for another image by now.
	Outdated Policy // Rebuild (default) or Keep

	// Most is how many sandboxes may be written down; 0 means any number.
	Most int
	// Quota is that of a project, of what is written down; nil means that there is none.
	Quota func(project string) store.Quota

	// Server says that the program is there for long. Others do not write down
	// sandboxes with AutoRemove, which go by themselves and with their command:
	// those have no secret.
	Server bool
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger

	step func(name string) // for tests: called after each step, with its name
}

// A Policy says what to do about a sandbox that is not as it should be.
type Policy string

// The policies.
const (
	Keep    Policy = "keep"
	Restart Policy = "restart"
	Rebuild Policy = "rebuild" // remove it but for its data volume, and make it again
	Remove  Policy = "remove"  // but for its data volume
)

// A Provider is the layer.
type Provider struct {
	atoll.ProviderLayer
	store store.Store
	opts  Options
	log   *slog.Logger
	scope string // of its records: the provider below
	gate  *gate

	mu      sync.Mutex
	loose   map[string]struct{}  // sandboxes that are not written down
	tidied  map[string]time.Time // when a project was that had used up its quota
	work    sync.WaitGroup       // removals that go on without their caller
	rounds  chan struct{}        // full while Reconcile runs; capacity 1
	closing sync.Once
}

// New returns p with its sandboxes written down in s, which is this layer's own:
// others open the same store themselves, as other programs do. It does not open
// s. Its Close closes p and s.
func New(p atoll.Provider, s store.Store, opts Options) *Provider {
	opts.Orphans = cmp.Or(opts.Orphans, Remove)
	opts.Failed = cmp.Or(opts.Failed, Keep)
	opts.Outdated = cmp.Or(opts.Outdated, Rebuild)
	if opts.Quota == nil {
		opts.Quota = func(string) store.Quota { return store.Quota{} }
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.step == nil {
		opts.step = func(string) {}
	}
	return &Provider{
		ProviderLayer: atoll.ProviderLayer{Provider: p}, store: s, opts: opts, log: opts.Log, scope: p.Info().Name,
		gate: newGate(), loose: map[string]struct{}{}, tidied: map[string]time.Time{}, rounds: make(chan struct{}, 1),
	}
}

// Info implements atoll.Provider.
func (l *Provider) Info() atoll.Info { return l.ProviderLayer.Provider.Info() }

// Close implements atoll.Provider.
func (l *Provider) Close() (err error) {
	l.closing.Do(func() {
		l.work.Wait()
		err = errors.Join(l.ProviderLayer.Close(), l.store.Close())
	})
	return err
}

// Create implements atoll.Provider.
func (l *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(spec.Env, isMark) {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "environment %s: is not for you to set, each sandbox gets one", atoll.SecretVar)
	}
	if spec.AutoRemove && !l.opts.Server {
		return l.createLoose(ctx, spec)
	}
	s := *spec // nobody changes what it points to
	s.ID, _ = atoll.NormalizeID(spec.ID)
	given := s.ID != ""
	s.ID, s.Project = cmp.Or(s.ID, atoll.NewID()), cmp.Or(s.Project, atoll.DefaultProject)
	unlock, err := l.gate.lock(ctx, "create", s.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	fresh := !given || l.hasNoData(ctx, &s)
	r, raw, drawn, err := l.intend(ctx, &s, fresh)
	if err != nil {
		return nil, err
	}
	l.opts.step("intent")
	sb, err := l.make(ctx, &s, raw)
	if err != nil {
		if err := l.store.Delete(context.WithoutCancel(ctx), r, drawn); err != nil {
			l.log.Warn("create: undo", "sandbox", r.ID, "err", err) // the next reconcile does it
		}
		return nil, err
	}
	l.opts.step("made")
	l.present(ctx, r, sb)
	return l.wrap(sb), nil
}

// createLoose makes a sandbox that is not written down.
func (l *Provider) createLoose(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := l.ProviderLayer.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loose[sb.ID()] = struct{}{}
	return l.wrap(sb), nil
}

// hasNoData reports whether there is no data volume that another sandbox with the id of s
// has left to it, as far as that can be known.
func (l *Provider) hasNoData(ctx context.Context, s *atoll.Spec) bool {
	all, err := atoll.Volumes(ctx, l.Provider, s.Project)
	return err == nil && !slices.ContainsFunc(all, func(v atoll.Volume) bool { return v.Sandbox == s.ID })
}

// intend writes down that a sandbox is going to be made, and if it is fresh that it has no
// data volume yet. drawn says that raw, its secret, is new.
func (l *Provider) intend(ctx context.Context, s *atoll.Spec, fresh bool) (r *store.Record, raw string, drawn bool, err error) {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return nil, "", false, err
	}
	own, tidied := secret.New(), false
	r = &store.Record{ID: s.ID, Scope: l.scope, Spec: *s, State: store.Creating, Volumes: fresh, Holder: me, Created: time.Now()}
	room := store.Room{Most: l.opts.Most, Quota: l.opts.Quota(s.Project)}
	for {
		raw, err = l.store.Insert(ctx, r, own, room)
		if err == nil {
			return r, raw, raw == own, nil
		}
		if errors.Is(err, store.ErrLimit) {
			if tidied || !l.mayTidy(r, err) {
				return nil, "", false, l.full(ctx, r, err)
			}
			if err := l.tidy(ctx); err != nil {
				return nil, "", false, err
			}
			tidied = true
			continue
		}
		if atoll.KindOf(err) != atoll.ErrAlreadyExists {
			return nil, "", false, err
		}
		other, err := l.vacate(ctx, r)
		if err != nil {
			return nil, "", false, err
		}
		if other != nil {
			return nil, "", false, taken(r, other)
		}
	}
}

// taken says what other has that r was to have.
func taken(r, other *store.Record) error {
	switch {
	case r.ID == other.ID:
		return atoll.Errorf("create", r.ID, atoll.ErrAlreadyExists, "a sandbox with this id is there already")
	case r.Scope != other.Scope:
		return atoll.Errorf("create", r.Spec.Name, atoll.ErrAlreadyExists,
			"the name is that of sandbox %s of the provider %s: if that is gone, atoll reconcile frees the name, where %[2]s is one of providers", other.ID, other.Scope)
	}
	return atoll.Errorf("create", r.Spec.Name, atoll.ErrAlreadyExists, "the name is that of sandbox %s", other.ID)
}

// vacate settles the record that is in the way of r, which it returns if it
// stays there: else it is worth another try.
func (l *Provider) vacate(ctx context.Context, r *store.Record) (other *store.Record, err error) {
	other, err = l.store.Find(ctx, r.ID)
	if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
		return nil, err
	}
	if err != nil {
		other, err = l.store.Named(ctx, r.Scope, r.Spec.Project, r.Spec.Name)
		if err != nil {
			return nil, notFoundIsFine(err)
		}
		unlock, ok := l.gate.try(other.ID)
		if !ok {
			return other, nil
		}
		defer unlock()
		if other, err = l.store.Find(ctx, other.ID); err != nil { // it may have changed since
			return nil, notFoundIsFine(err)
		}
	}
	if other.Scope != l.scope || other.State == store.Rebuilding {
		return other, nil
	}
	out, err := l.settle(ctx, other, false)
	switch {
	case errors.Is(err, errElsewhere):
		return other, nil
	case errors.Is(err, store.ErrChanged): // another program was faster
		return nil, nil
	case err != nil:
		return nil, err
	case out.gone:
		return nil, nil
	}
	return other, nil
}

// make makes the sandbox of a record, with its secret inside.
func (l *Provider) make(ctx context.Context, s *atoll.Spec, raw string) (atoll.Sandbox, error) {
	id, err := l.store.Identity(ctx)
	if err != nil {
		return nil, err
	}
	c := *s
	c.Env = append(slices.Clone(s.Env), mark(id, s.ID, raw))
	return l.ProviderLayer.Create(ctx, &c)
}

// present writes down that the sandbox is there. If that cannot be, the next
// reconcile finds out.
func (l *Provider) present(ctx context.Context, r *store.Record, sb atoll.Sandbox) {
	ctx = context.WithoutCancel(ctx)
	r.State, r.Provider, r.Reason, r.Volumes = store.Present, l.scope, "", false
	if l.Info().Caps.Survives {
		r.Holder = ""
	}
	if err := l.store.Update(ctx, r); err != nil {
		l.log.Warn("create: not written down as made", "sandbox", r.ID, "err", err)
	}
}

// Get implements atoll.Provider. A sandbox whose rebuild failed is there, too,
// and has failed.
func (l *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := l.ProviderLayer.Get(ctx, id)
	if err == nil {
		return l.wrap(sb), nil
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		if n, idErr := atoll.NormalizeID(id); idErr == nil && n != "" {
			if r, findErr := l.store.Find(ctx, n); findErr == nil && l.isLost(r) {
				return l.wrap(&lost{l, r.ID}), nil
			}
		}
	}
	return nil, err
}

// Resolve implements atoll.Resolver. What is still written down of a sandbox that
// is gone and had the name is settled: whoever looks for it may be about to give
// the name to one of another provider, which has to be free for that.
func (l *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	id, err := atoll.ResolveID(ctx, l.Provider, project, name)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		r, findErr := l.store.Named(ctx, l.scope, cmp.Or(project, atoll.DefaultProject), name)
		switch {
		case findErr != nil || r.Scope != l.scope:
		case l.isLost(r):
			return r.ID, nil
		default:
			if err := l.tidyOne(ctx, r.ID); err != nil {
				l.log.Debug("resolve: settle", "sandbox", r.ID, "err", err) // it keeps its name
			}
		}
	}
	return id, err
}

// List implements atoll.Provider. Sandboxes whose rebuild failed are there, too.
func (l *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := l.ProviderLayer.List(ctx, f)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for i := range all {
		all[i].Spec.Env = unmarked(all[i].Spec.Env)
		known[all[i].ID] = true
	}
	lost := l.allLost(ctx, known)
	if len(lost) == 0 {
		return all, nil
	}
	for _, st := range lost {
		if f.Match(st) {
			all = append(all, st)
		}
	}
	slices.SortStableFunc(all, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return all, nil
}

// Watch implements atoll.Provider. What List has besides is in the replay; that
// a rebuild has failed later on is not told, but that the sandbox was removed.
func (l *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		known := map[string]bool{}
		synced := false
		for ev, err := range l.ProviderLayer.Watch(ctx) {
			if err == nil && ev.Type == atoll.EventSynced && !synced {
				synced = true
				for _, st := range l.allLost(ctx, known) {
					if !yield(atoll.Event{Type: atoll.EventState, Status: st, Time: ev.Time}, nil) {
						return
					}
				}
				known = nil
			}
			if !synced {
				known[ev.Status.ID] = true
			}
			ev.Status.Spec.Env = unmarked(ev.Status.Spec.Env)
			if !yield(ev, err) {
				return
			}
		}
	}
}

// Snapshots implements atoll.SnapshotStore.
func (l *Provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	all, err := atoll.Snapshots(ctx, l.Provider)
	for i := range all {
		all[i].Spec.Env = unmarked(all[i].Spec.Env)
	}
	return all, err
}

// Secret implements atoll.SecretKeeper.
func (l *Provider) Secret(ctx context.Context, id string) (string, error) {
	sb, err := l.ProviderLayer.Get(ctx, id) // it may have gone without us
	if err != nil {
		return "", err
	}
	return l.store.Secret(ctx, sb.ID())
}

// RemoveSnapshot forwards.
func (l *Provider) RemoveSnapshot(ctx context.Context, id string) error {
	return atoll.RemoveSnapshot(ctx, l.Provider, id)
}

var (
	_ atoll.Provider       = (*Provider)(nil)
	_ atoll.Resolver       = (*Provider)(nil)
	_ atoll.SnapshotStore  = (*Provider)(nil)
	_ atoll.SecretKeeper   = (*Provider)(nil)
	_ Reconciler           = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
