package registry_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A brokenStore is a store whose nth call fails, counted from 1.
type brokenStore struct {
	store.Store
	nth int
	err error

	mu sync.Mutex
	n  int
}

func (b *brokenStore) fail() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	if b.nth > 0 && b.n == b.nth || b.nth < 0 {
		return b.err
	}
	return nil
}

func (b *brokenStore) Identity(ctx context.Context) (store.Identity, error) {
	if err := b.fail(); err != nil {
		return store.Identity{}, err
	}
	return b.Store.Identity(ctx)
}

func (b *brokenStore) Insert(ctx context.Context, r *store.Record, secret string, room store.Room) (string, error) {
	if err := b.fail(); err != nil {
		return "", err
	}
	return b.Store.Insert(ctx, r, secret, room)
}

func (b *brokenStore) Update(ctx context.Context, r *store.Record) error {
	if err := b.fail(); err != nil {
		return err
	}
	return b.Store.Update(ctx, r)
}

func (b *brokenStore) Delete(ctx context.Context, r *store.Record, secret bool) error {
	if err := b.fail(); err != nil {
		return err
	}
	return b.Store.Delete(ctx, r, secret)
}

func (b *brokenStore) Forget(ctx context.Context, r *store.Record) error {
	if err := b.fail(); err != nil {
		return err
	}
	return b.Store.Forget(ctx, r)
}

func (b *brokenStore) Forgotten(ctx context.Context, id string) (bool, error) {
	if err := b.fail(); err != nil {
		return false, err
	}
	return b.Store.Forgotten(ctx, id)
}

func (b *brokenStore) InState(ctx context.Context, scope string, state store.State) ([]*store.Record, error) {
	if err := b.fail(); err != nil {
		return nil, err
	}
	return b.Store.InState(ctx, scope, state)
}

func (b *brokenStore) Find(ctx context.Context, id string) (*store.Record, error) {
	if err := b.fail(); err != nil {
		return nil, err
	}
	return b.Store.Find(ctx, id)
}

func (b *brokenStore) Records(ctx context.Context) ([]*store.Record, error) {
	if err := b.fail(); err != nil {
		return nil, err
	}
	return b.Store.Records(ctx)
}

func (b *brokenStore) KeepSecret(ctx context.Context, scope, id, secret string) (string, error) {
	if err := b.fail(); err != nil {
		return "", err
	}
	return b.Store.KeepSecret(ctx, scope, id, secret)
}

func (b *brokenStore) DropSecret(ctx context.Context, id string) error {
	if err := b.fail(); err != nil {
		return err
	}
	return b.Store.DropSecret(ctx, id)
}

func (b *brokenStore) Abandoned(ctx context.Context, scope string) ([]string, error) {
	if err := b.fail(); err != nil {
		return nil, err
	}
	return b.Store.Abandoned(ctx, scope)
}

func (b *brokenStore) Holder(ctx context.Context) (string, error) {
	if err := b.fail(); err != nil {
		return "", err
	}
	return b.Store.Holder(ctx)
}

func (b *brokenStore) Alive(ctx context.Context, holder string) (bool, error) {
	if err := b.fail(); err != nil {
		return true, err
	}
	return b.Store.Alive(ctx, holder)
}

// A mess is one of each that Reconcile finds.
type mess struct {
	l                                                *lab
	healthy, missing, outdated, orphan, removed, old atoll.Sandbox
}

func makeMess(t *testing.T) *mess {
	t.Helper()
	l := newLab(t, registry.Options{})
	ctx := t.Context()
	m := &mess{l: l, old: l.create(l.engine, atoll.Spec{Name: "old"})}
	m.healthy, m.missing = l.create(l, atoll.Spec{Name: "healthy"}), l.create(l, atoll.Spec{Name: "missing"})
	m.outdated = l.create(l, atoll.Spec{Name: "outdated", Image: image})
	m.orphan, m.removed = l.create(l, atoll.Spec{Name: "orphan"}), l.create(l, atoll.Spec{Name: "removed"})
	gone, err := l.engine.Get(ctx, m.missing.ID())
	if err == nil {
		err = gone.Remove(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.release("2")
	l.lose(m.orphan.ID())
	r, err := l.store.Find(ctx, m.removed.ID())
	if err == nil {
		r.State, r.Holder = store.Removing, atoll.NewID()
		err = l.store.Update(ctx, r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// unharmed checks that nothing is lost that is to be there.
func (m *mess) unharmed(t *testing.T) {
	t.Helper()
	l := m.l
	for name, sb := range map[string]atoll.Sandbox{"healthy": m.healthy, "old": m.old} {
		if !l.has(sb.ID()) {
			t.Errorf("%s is gone", name)
		}
	}
	if !l.has(m.outdated.ID()) && l.written(m.outdated.ID()) != store.Rebuilding {
		t.Error("outdated is gone, and not written down as to be rebuilt")
	}
	for name, sb := range map[string]atoll.Sandbox{"healthy": m.healthy, "outdated": m.outdated, "orphan": m.orphan, "removed": m.removed, "old": m.old} {
		if !l.hasData(sb.ID()) {
			t.Errorf("the data of %s is gone", name)
		}
	}
	for name, sb := range map[string]atoll.Sandbox{"healthy": m.healthy, "outdated": m.outdated} {
		if _, err := l.store.Secret(t.Context(), sb.ID()); err != nil {
			t.Errorf("the secret of %s is gone: %v", name, err)
		}
	}
}

// settles checks that all is well after two more rounds: one for what was cut
// short, and one for what it was about.
func (m *mess) settles(t *testing.T) {
	t.Helper()
	for range 2 {
		if _, err := m.l.Reconcile(t.Context(), registry.ReconcileOptions{}); err != nil {
			t.Errorf("Reconcile: %v", err)
		}
	}
	m.l.reconcile(registry.ReconcileOptions{}, 3, none)
	m.unharmed(t)
	for _, sb := range []atoll.Sandbox{m.missing, m.orphan, m.removed} {
		if m.l.has(sb.ID()) || m.l.written(sb.ID()) != "" {
			t.Errorf("%s is there: %v, written down as %q", sb.ID(), m.l.has(sb.ID()), m.l.written(sb.ID()))
		}
	}
}

// Whatever call of the provider fails, what is to be there is there, and
// later rounds end what this one has begun.
func TestReconcileWhenTheProviderFails(t *testing.T) {
	for n := 1; ; n++ {
		plan := providertest.FailCall(n)
		t.Run(fmt.Sprintf("call %d", n), func(t *testing.T) {
			m := makeMess(t)
			p := registry.New(providertest.Faulty(m.l.engine, plan), m.l.store, registry.Options{Server: true})
			sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
			if calls := plan.Calls(); plan.Fired() && calls[n-1] == "Provider.List" {
				if err == nil || len(sum.Findings) > 0 || !m.l.has(m.orphan.ID()) || !m.l.has(m.removed.ID()) || m.l.written(m.missing.ID()) == "" {
					t.Errorf("although List failed: %+v, %v", sum, err)
				}
			}
			m.unharmed(t)
			m.settles(t)
		})
		if !plan.Fired() || t.Failed() {
			return
		}
	}
}

// And whatever call of the store fails.
func TestReconcileWhenTheStoreFails(t *testing.T) {
	for n := 1; ; n++ {
		made := 0
		t.Run(fmt.Sprintf("call %d", n), func(t *testing.T) {
			m := makeMess(t)
			s := &brokenStore{Store: m.l.store, nth: n, err: atoll.Errorf("find", "", atoll.ErrUnavailable, "as planned")}
			p := registry.New(m.l.engine, s, registry.Options{Server: true})
			_, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
			if err != nil && (!m.l.has(m.orphan.ID()) || !m.l.has(m.removed.ID())) {
				t.Errorf("something was removed although there was no telling what there is: %v", err)
			}
			made = s.n
			m.unharmed(t)
			m.settles(t)
		})
		if made < n || t.Failed() {
			return
		}
	}
}

// A sandbox is not made when that cannot be written down; and it can always be
// removed: that may be what makes room on the disk.
func TestFullDisk(t *testing.T) {
	l := newLab(t, registry.Options{})
	sb := l.create(l, atoll.Spec{Name: "web"})
	s := &brokenStore{Store: l.store, nth: -1, err: atoll.Errorf("update", "", atoll.ErrExhausted, "the disk is full")}
	p := registry.New(l.engine, s, registry.Options{Server: true})
	if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted {
		t.Errorf("Create: %v, want ErrExhausted", err)
	}
	again, err := p.Get(t.Context(), sb.ID())
	if err == nil {
		err = atoll.Run(t.Context(), again, &atoll.Command{Args: []string{"true"}})
	}
	if err != nil {
		t.Errorf("a sandbox cannot be used: %v", err)
	}
	if err := again.Remove(t.Context(), atoll.RemoveVolumes()); err != nil || l.has(sb.ID()) || l.hasData(sb.ID()) {
		t.Errorf("Remove: %v; it is there: %v", err, l.has(sb.ID()))
	}
	l.reconcile(registry.ReconcileOptions{}, 0, map[string]string{sb.ID(): "missing forgotten"})
}

// Whatever call fails while sandboxes are made and removed, nothing is left that
// does not go at the next round.
func TestFaults(t *testing.T) {
	providertest.EachFault(t, func(t *testing.T, plan *providertest.Plan) {
		dir := t.TempDir()
		e := openEngine(t, dir)
		p := registry.New(providertest.Faulty(e, plan), teststore.Open(dir), registry.Options{Server: true})
		t.Cleanup(func() { p.Close() })
		for range 2 { // the second time, the name has to be free
			sb, err := p.Create(t.Context(), &atoll.Spec{Name: "web"})
			if err != nil {
				if atoll.KindOf(err) != atoll.ErrUnavailable {
					t.Errorf("Create: %v", err)
				}
				continue
			}
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
					t.Errorf("Remove, tried again: %v", err)
				}
			}
		}
	})
}
