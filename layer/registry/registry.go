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
	"encoding/hex"
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

// Options select what Reconcile does with its findings. The zero value is for
// short-lived programs.
type Options struct {
	// Orphans: sandboxes that programs with this store made, and that have no
	// record. Reconcile never removes those that others made.
	Orphans Policy // Remove (default), or Keep, which records them
	Failed  Policy // Keep (default), Restart, or Rebuild those without a TTL
	// Outdated: sandboxes whose image reference now resolves to another image.
	Outdated Policy // Rebuild (default) or Keep

	// MaxSandboxes limits the recorded sandboxes; 0 means no limit.
	MaxSandboxes int
	// Quota returns the quota of a project, which limits its recorded sandboxes;
	// nil means no quotas.
	Quota func(project string) store.Quota

	// Server declares a long-running program. Other programs do not record
	// sandboxes with AutoRemove, which end with their command or program; those
	// have no secret.
	Server bool
	// Log receives errors that no call can return; nil discards them.
	Log *slog.Logger

	onStep func(name string) // for tests: called after each step, with its name
}

// A Policy selects what Reconcile does with a finding.
type Policy string

// The policies.
const (
	Keep    Policy = "keep"
	Restart Policy = "restart"
	Rebuild Policy = "rebuild" // remove it except for its data volume, and create it again
	Remove  Policy = "remove"  // except for its data volume
)

// A Provider is the layer.
type Provider struct {
	atoll.ProviderLayer
	store store.Store
	opts  Options
	log   *slog.Logger
	scope string // the name of the provider below, in each record
	locks *sandboxLocks

	mu          sync.Mutex
	unrecorded  map[string]struct{}  // sandboxes without a record
	lastSettled map[string]time.Time // by project: last settleStale because of its quota
	removals    sync.WaitGroup       // removals that continue without their caller
	reconciling chan struct{}        // full during Reconcile; capacity 1
	closeOnce   sync.Once
}

// New returns p with its sandboxes recorded in s. The layer owns s; other users of
// the same store open it themselves. New does not open s. Close closes p and s.
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
	if opts.onStep == nil {
		opts.onStep = func(string) {}
	}
	return &Provider{
		ProviderLayer: atoll.ProviderLayer{Provider: p}, store: s, opts: opts, log: opts.Log, scope: p.Info().Name,
		locks: newSandboxLocks(), unrecorded: map[string]struct{}{}, lastSettled: map[string]time.Time{}, reconciling: make(chan struct{}, 1),
	}
}

// Info implements atoll.Provider.
func (l *Provider) Info() atoll.Info { return l.ProviderLayer.Provider.Info() }

// Close implements atoll.Provider.
func (l *Provider) Close() (err error) {
	l.closeOnce.Do(func() {
		l.removals.Wait()
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
	if slices.ContainsFunc(spec.Env, isSecretVar) {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "environment %s: reserved for Atoll; remove it", atoll.SecretVar)
	}
	if spec.AutoRemove && !l.opts.Server {
		return l.createUnrecorded(ctx, spec)
	}
	s := *spec // a shallow copy: only fields of s change
	s.ID, _ = atoll.NormalizeID(spec.ID)
	given := s.ID != ""
	s.ID, s.Project = cmp.Or(s.ID, atoll.NewID()), cmp.Or(s.Project, atoll.DefaultProject)
	unlock, err := l.locks.lockRecord(ctx, "create", s.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	fresh := !given || l.hasNoData(ctx, &s)
	r, raw, newSecret, err := l.recordIntent(ctx, &s, fresh)
	if err != nil {
		return nil, err
	}
	l.opts.onStep("intent")
	sb, err := l.createWithSecret(ctx, &s, raw)
	if err != nil {
		if err := l.store.Delete(context.WithoutCancel(ctx), r, newSecret); err != nil {
			l.log.Warn("create: cannot delete the record of a failed creation", "sandbox", r.ID, "err", err) // the next reconcile does
		}
		return nil, err
	}
	l.opts.onStep("made")
	l.recordPresent(ctx, r, sb)
	return l.wrapSandbox(sb), nil
}

// createUnrecorded creates a sandbox without a record.
func (l *Provider) createUnrecorded(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := l.ProviderLayer.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unrecorded[sb.ID()] = struct{}{}
	return l.wrapSandbox(sb), nil
}

// hasNoData reports whether no data volume of a former sandbox with the ID of s
// exists. If it cannot tell, it returns false.
func (l *Provider) hasNoData(ctx context.Context, s *atoll.Spec) bool {
	all, err := atoll.Volumes(ctx, l.Provider, s.Project)
	return err == nil && !slices.ContainsFunc(all, func(v atoll.Volume) bool { return v.Sandbox == s.ID })
}

// recordIntent inserts the record of a sandbox before its creation. fresh means
// that the sandbox has no data volume yet. recordIntent returns the record and the
// sandbox's secret; newSecret reports whether the secret is new.
func (l *Provider) recordIntent(ctx context.Context, s *atoll.Spec, fresh bool) (r *store.Record, raw string, newSecret bool, err error) {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return nil, "", false, err
	}
	own, settled := secret.New(), false
	r = &store.Record{ID: s.ID, Scope: l.scope, Spec: *s, State: store.Creating, Volumes: fresh, Holder: me, Created: time.Now()}
	room := store.Limits{Most: l.opts.MaxSandboxes, Quota: l.opts.Quota(s.Project)}
	for {
		raw, err = l.store.Insert(ctx, r, own, room)
		if err == nil {
			return r, raw, raw == own, nil
		}
		if errors.Is(err, store.ErrLimit) {
			if settled || !l.maySettle(r, err) {
				return nil, "", false, l.limitError(ctx, r, err)
			}
			if err := l.settleStale(ctx); err != nil {
				return nil, "", false, err
			}
			settled = true
			continue
		}
		if atoll.KindOf(err) != atoll.ErrAlreadyExists {
			return nil, "", false, err
		}
		other, err := l.settleConflict(ctx, r)
		if err != nil {
			return nil, "", false, err
		}
		if other != nil {
			return nil, "", false, conflictError(r, other)
		}
	}
}

// conflictError returns the ErrAlreadyExists for r, whose ID or name other has.
func conflictError(r, other *store.Record) error {
	switch {
	case r.ID == other.ID:
		return atoll.Errorf("create", r.ID, atoll.ErrAlreadyExists, "a sandbox with this id exists")
	case r.Scope != other.Scope:
		return atoll.Errorf("create", r.Spec.Name, atoll.ErrAlreadyExists,
			"name in use by sandbox %s of provider %s; if that is gone, add %[2]s to providers and run atoll reconcile", other.ID, other.Scope)
	}
	return atoll.Errorf("create", r.Spec.Name, atoll.ErrAlreadyExists, "name in use by sandbox %s", other.ID)
}

// settleConflict settles the record that conflicts with r. It returns that record
// if it remains, or nil if the caller may retry.
func (l *Provider) settleConflict(ctx context.Context, r *store.Record) (other *store.Record, err error) {
	other, err = l.store.Find(ctx, r.ID)
	if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
		return nil, err
	}
	if err != nil {
		other, err = l.store.Named(ctx, r.Scope, r.Spec.Project, r.Spec.Name)
		if err != nil {
			return nil, ignoreNotFound(err)
		}
		unlock, ok := l.locks.tryLock(other.ID)
		if !ok {
			return other, nil
		}
		defer unlock()
		if other, err = l.store.Find(ctx, other.ID); err != nil { // read again under the lock
			return nil, ignoreNotFound(err)
		}
	}
	if other.Scope != l.scope || other.State == store.Rebuilding {
		return other, nil
	}
	out, err := l.settleLocked(ctx, other, false)
	switch {
	case errors.Is(err, errHeldElsewhere):
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

// createWithSecret creates the sandbox of a record, with the hash of its secret raw
// in the environment, and a note of the store.
func (l *Provider) createWithSecret(ctx context.Context, s *atoll.Spec, raw string) (atoll.Sandbox, error) {
	id, err := l.store.Identity(ctx)
	if err != nil {
		return nil, err
	}
	c := s.Clone()
	salt := secretSalt(id, s.ID)
	c.System.Env = append(c.System.Env, atoll.SecretVar+"="+secret.HashWith(salt, raw))
	c.AddNote(noteSalt, hex.EncodeToString(salt[:]))
	return l.ProviderLayer.Create(ctx, c)
}

// recordPresent records that the sandbox exists. It logs an error; the next
// reconcile finds out.
func (l *Provider) recordPresent(ctx context.Context, r *store.Record, sb atoll.Sandbox) {
	ctx = context.WithoutCancel(ctx)
	r.State, r.Provider, r.Reason, r.Volumes = store.Present, l.scope, "", false
	if l.Info().Caps.Survives {
		r.Holder = ""
	}
	if err := l.store.Update(ctx, r); err != nil {
		l.log.Warn("create: cannot record the new sandbox", "sandbox", r.ID, "err", err)
	}
}

// Get implements atoll.Provider. It also returns a sandbox whose rebuild failed, in
// StateFailed.
func (l *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := l.ProviderLayer.Get(ctx, id)
	if err == nil {
		return l.wrapSandbox(sb), nil
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		if n, idErr := atoll.NormalizeID(id); idErr == nil && n != "" {
			if r, findErr := l.store.Find(ctx, n); findErr == nil && l.isLost(r) {
				return l.wrapSandbox(&lostSandbox{l, r.ID}), nil
			}
		}
	}
	return nil, err
}

// Resolve implements atoll.Resolver. If the sandbox with the name is gone, Resolve
// settles its record: the caller may want to give the name to a sandbox of another
// provider, where the record would block it.
func (l *Provider) Resolve(ctx context.Context, project, name string) (string, error) {
	id, err := atoll.ResolveID(ctx, l.Provider, project, name)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		r, findErr := l.store.Named(ctx, l.scope, cmp.Or(project, atoll.DefaultProject), name)
		switch {
		case findErr != nil || r.Scope != l.scope:
		case l.isLost(r):
			return r.ID, nil
		default:
			if err := l.settleRecord(ctx, r.ID); err != nil {
				l.log.Debug("resolve: settle", "sandbox", r.ID, "err", err) // the record keeps its name
			}
		}
	}
	return id, err
}

// List implements atoll.Provider. It includes sandboxes whose rebuild failed.
func (l *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := l.ProviderLayer.List(ctx, f)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for i := range all {
		known[all[i].ID] = true
	}
	lost := l.listLost(ctx, known)
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

// Watch implements atoll.Provider. Its replay includes sandboxes whose rebuild
// failed. If a rebuild fails later, Watch yields only the removal.
func (l *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		known := map[string]bool{}
		synced := false
		for ev, err := range l.ProviderLayer.Watch(ctx) {
			if err == nil && ev.Type == atoll.EventSynced && !synced {
				synced = true
				for _, st := range l.listLost(ctx, known) {
					if !yield(atoll.Event{Type: atoll.EventState, Status: st, Time: ev.Time}, nil) {
						return
					}
				}
				known = nil
			}
			if !synced {
				known[ev.Status.ID] = true
			}
			if !yield(ev, err) {
				return
			}
		}
	}
}

// Secret implements atoll.SecretKeeper.
func (l *Provider) Secret(ctx context.Context, id string) (string, error) {
	sb, err := l.ProviderLayer.Get(ctx, id) // it may be gone without a removal
	if err != nil {
		return "", err
	}
	return l.store.Secret(ctx, sb.ID())
}

var (
	_ atoll.Provider       = (*Provider)(nil)
	_ atoll.Resolver       = (*Provider)(nil)
	_ atoll.SecretKeeper   = (*Provider)(nil)
	_ Reconciler           = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
