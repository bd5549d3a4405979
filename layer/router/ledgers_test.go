package router_test

import (
	"context"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/router"
)

// A written provider is a mock with a ledger, as far as that can be seen.
type written struct {
	renamed
	fails error
}

func ledgers(t *testing.T, name string, fails error) router.Member {
	m := mocks(t)
	return router.Member{Name: name, Open: func() (atoll.Provider, error) {
		p, err := m.Open()
		return written{renamed{atoll.ProviderLayer{Provider: p}, name, ""}, fails}, err
	}}
}

func (w written) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	s := *spec
	s.Provider = ""
	return w.Provider.Create(ctx, &s)
}

func (w written) Secret(_ context.Context, id string) (string, error) {
	return w.name + " " + id, nil
}

func (w written) ResolveImage(_ context.Context, ref string) (string, error) {
	return w.name + " " + ref, nil
}

func (w written) Projects(context.Context) ([]atoll.Project, error) {
	return []atoll.Project{{Name: "a", Provider: w.name}, {Name: "b", Provider: w.name}}, w.fails
}

func (w written) Reconcile(context.Context, registry.ReconcileOptions) (registry.Reconciliation, error) {
	return registry.Reconciliation{Healthy: 1, Findings: []registry.Finding{{ID: w.name}}}, w.fails
}

func TestLedgers(t *testing.T) {
	p := open(t, router.Options{}, ledgers(t, "one", nil), ledgers(t, "two", nil), mocks(t), broken("docker"))
	for _, name := range []string{"one", "two"} {
		sb := create(t, p, atoll.Spec{Provider: name})
		if got, err := p.Secret(t.Context(), sb.ID()); got != name+" "+sb.ID() || err != nil {
			t.Errorf("Secret: %q, %v; want that of %s", got, err, name)
		}
	}
	_, err := p.Secret(t.Context(), atoll.NewID())
	wants(t, "Secret of none", err, atoll.ErrNotFound, "")
	if got, err := p.ResolveImage(t.Context(), "app"); got != "one app" || err != nil {
		t.Errorf("ResolveImage: %q, %v", got, err)
	}
	sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
	if err != nil || sum.Healthy != 2 || len(sum.Findings) != 2 || sum.Findings[0].ID != "one" || sum.Findings[1].ID != "two" {
		t.Errorf("Reconcile: %+v, %v", sum, err)
	}
}

// One that cannot be asked is left alone, and keeps nobody else from it.
func TestReconcileWithoutOne(t *testing.T) {
	s := newSick(t)
	p := open(t, router.Options{}, ledgers(t, "one", nil), s.Member)
	create(t, p, atoll.Spec{Provider: "mock"})
	s.falls(errDown)
	if sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{}); err != nil || sum.Healthy != 1 || len(sum.Findings) != 1 {
		t.Errorf("Reconcile: %+v, %v", sum, err)
	}
	s.recovers()
	q := open(t, router.Options{}, ledgers(t, "one", errDown), mocks(t))
	_, err := q.Reconcile(t.Context(), registry.ReconcileOptions{})
	wants(t, "Reconcile", err, atoll.ErrUnavailable, "the engine is down")
	_, err = open(t, router.Options{}, mocks(t)).Reconcile(t.Context(), registry.ReconcileOptions{})
	wants(t, "Reconcile without a ledger", err, atoll.ErrUnsupported, "")
}
