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

func (b *brokenStore) Insert(ctx context.Context, r *store.Record, secret string, room store.Limits) (string, error) {
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

func (b *brokenStore) IsAlive(ctx context.Context, holder string) (bool, error) {
	if err := b.fail(); err != nil {
		return true, err
	}
	return b.Store.IsAlive(ctx, holder)
}

// A mixedState has one sandbox for each kind of finding.
type mixedState struct {
	l                                                *fixture
	healthy, missing, outdated, orphan, removed, old atoll.Sandbox
}

func newMixedState(t *testing.T) *mixedState {
	t.Helper()
	l := newFixture(t, registry.Options{})
	ctx := t.Context()
	m := &mixedState{l: l, old: l.mustCreate(l.engine, atoll.Spec{Name: "old"})}
	m.healthy, m.missing = l.mustCreate(l, atoll.Spec{Name: "healthy"}), l.mustCreate(l, atoll.Spec{Name: "missing"})
	m.outdated = l.mustCreate(l, atoll.Spec{Name: "outdated", Image: image})
	m.orphan, m.removed = l.mustCreate(l, atoll.Spec{Name: "orphan"}), l.mustCreate(l, atoll.Spec{Name: "removed"})
	gone, err := l.engine.Get(ctx, m.missing.ID())
	if err == nil {
		err = gone.Remove(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.releaseImage("2")
	l.deleteRecord(m.orphan.ID())
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

// checkUnharmed checks that nothing is lost that should exist.
func (m *mixedState) checkUnharmed(t *testing.T) {
	t.Helper()
	l := m.l
	for name, sb := range map[string]atoll.Sandbox{"healthy": m.healthy, "old": m.old} {
		if !l.exists(sb.ID()) {
			t.Errorf("%s is gone", name)
		}
	}
	if !l.exists(m.outdated.ID()) && l.recordState(m.outdated.ID()) != store.Rebuilding {
		t.Error("outdated is gone, and its record does not say rebuilding")
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

// checkSettles checks that two more rounds repair everything: one completes
// interrupted operations, one handles the rest.
func (m *mixedState) checkSettles(t *testing.T) {
	t.Helper()
	for range 2 {
		if _, err := m.l.Reconcile(t.Context(), registry.ReconcileOptions{}); err != nil {
			t.Errorf("Reconcile: %v", err)
		}
	}
	m.l.wantReconcile(registry.ReconcileOptions{}, 3, noFindings)
	m.checkUnharmed(t)
	for _, sb := range []atoll.Sandbox{m.missing, m.orphan, m.removed} {
		if m.l.exists(sb.ID()) || m.l.recordState(sb.ID()) != "" {
			t.Errorf("%s exists: %v, its record is %q", sb.ID(), m.l.exists(sb.ID()), m.l.recordState(sb.ID()))
		}
	}
}

// Whatever call of the provider fails, nothing is lost, and later rounds complete
// the work.
func TestReconcileWhenTheProviderFails(t *testing.T) {
	for n := 1; ; n++ {
		plan := providertest.FailCall(n)
		t.Run(fmt.Sprintf("call %d", n), func(t *testing.T) {
			m := newMixedState(t)
			p := registry.New(providertest.Faulty(m.l.engine, plan), m.l.store, registry.Options{Server: true})
			sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
			if calls := plan.Calls(); plan.Fired() && calls[n-1] == "Provider.List" {
				if err == nil || len(sum.Findings) > 0 || !m.l.exists(m.orphan.ID()) || !m.l.exists(m.removed.ID()) || m.l.recordState(m.missing.ID()) == "" {
					t.Errorf("after a failed List: %+v, %v", sum, err)
				}
			}
			m.checkUnharmed(t)
			m.checkSettles(t)
		})
		if !plan.Fired() || t.Failed() {
			return
		}
	}
}

// The same for each call of the store.
func TestReconcileWhenTheStoreFails(t *testing.T) {
	for n := 1; ; n++ {
		made := 0
		t.Run(fmt.Sprintf("call %d", n), func(t *testing.T) {
			m := newMixedState(t)
			s := &brokenStore{Store: m.l.store, nth: n, err: atoll.Errorf("find", "", atoll.ErrUnavailable, "as planned")}
			p := registry.New(m.l.engine, s, registry.Options{Server: true})
			_, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
			if err != nil && (!m.l.exists(m.orphan.ID()) || !m.l.exists(m.removed.ID())) {
				t.Errorf("Reconcile removed a sandbox without knowing the records: %v", err)
			}
			made = s.n
			m.checkUnharmed(t)
			m.checkSettles(t)
		})
		if made < n || t.Failed() {
			return
		}
	}
}

// Create fails if the store cannot record the sandbox. Remove works even then,
// because it may make room on the disk.
func TestFullDisk(t *testing.T) {
	l := newFixture(t, registry.Options{})
	sb := l.mustCreate(l, atoll.Spec{Name: "web"})
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
		t.Errorf("Run in an existing sandbox: %v", err)
	}
	if err := again.Remove(t.Context(), atoll.RemoveVolumes()); err != nil || l.exists(sb.ID()) || l.hasData(sb.ID()) {
		t.Errorf("Remove: %v; sandbox exists: %v", err, l.exists(sb.ID()))
	}
	l.wantReconcile(registry.ReconcileOptions{}, 0, map[string]string{sb.ID(): "missing forgotten"})
}

// Whatever call fails during Create and Remove, the next Reconcile leaves nothing.
func TestFaults(t *testing.T) {
	providertest.EachFault(t, func(t *testing.T, plan *providertest.Plan) {
		dir := t.TempDir()
		e := openEngine(t, dir)
		p := registry.New(providertest.Faulty(e, plan), teststore.Open(dir), registry.Options{Server: true})
		t.Cleanup(func() { p.Close() })
		for range 2 { // the second Create finds the name free
			sb, err := p.Create(t.Context(), &atoll.Spec{Name: "web"})
			if err != nil {
				if atoll.KindOf(err) != atoll.ErrUnavailable {
					t.Errorf("Create: %v", err)
				}
				continue
			}
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
					t.Errorf("second Remove: %v", err)
				}
			}
		}
	})
}
