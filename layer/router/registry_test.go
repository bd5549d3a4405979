package router_test

import (
	"context"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/router"
)

// A registryProvider is a mock that looks like one with a registry.
type registryProvider struct {
	renamedProvider
	fails error
}

func registryMember(t *testing.T, name string, fails error) router.Member {
	m := mockMember(t)
	return router.Member{Name: name, Open: func() (atoll.Provider, error) {
		p, err := m.Open()
		return registryProvider{renamedProvider{atoll.ProviderLayer{Provider: p}, name, ""}, fails}, err
	}}
}

func (w registryProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	s := *spec
	s.Provider = ""
	return w.Provider.Create(ctx, &s)
}

func (w registryProvider) Secret(_ context.Context, id string) (string, error) {
	return w.name + " " + id, nil
}

func (w registryProvider) ResolveImage(_ context.Context, ref string) (string, error) {
	return w.name + " " + ref, nil
}

func (w registryProvider) Projects(context.Context) ([]atoll.Project, error) {
	return []atoll.Project{{Name: "a", Provider: w.name}, {Name: "b", Provider: w.name}}, w.fails
}

func (w registryProvider) Reconcile(context.Context, registry.ReconcileOptions) (registry.Reconciliation, error) {
	return registry.Reconciliation{Healthy: 1, Findings: []registry.Finding{{ID: w.name}}}, w.fails
}

func TestRegistries(t *testing.T) {
	p := newRouter(t, router.Options{}, registryMember(t, "one", nil), registryMember(t, "two", nil), mockMember(t), brokenMember("docker"))
	for _, name := range []string{"one", "two"} {
		sb := mustCreate(t, p, atoll.Spec{Provider: name})
		if got, err := p.Secret(t.Context(), sb.ID()); got != name+" "+sb.ID() || err != nil {
			t.Errorf("Secret: %q, %v; want that of %s", got, err, name)
		}
	}
	_, err := p.Secret(t.Context(), atoll.NewID())
	wantError(t, "Secret of an unknown id", err, atoll.ErrNotFound, "")
	if got, err := p.ResolveImage(t.Context(), "app"); got != "one app" || err != nil {
		t.Errorf("ResolveImage: %q, %v", got, err)
	}
	sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
	if err != nil || sum.Healthy != 2 || len(sum.Findings) != 2 || sum.Findings[0].ID != "one" || sum.Findings[1].ID != "two" {
		t.Errorf("Reconcile: %+v, %v", sum, err)
	}
}

// Reconcile skips an unavailable member, and reconciles the others.
func TestReconcileWithoutOne(t *testing.T) {
	s := newFlakyMember(t)
	p := newRouter(t, router.Options{}, registryMember(t, "one", nil), s.Member)
	mustCreate(t, p, atoll.Spec{Provider: "mock"})
	s.setError(errDown)
	if sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{}); err != nil || sum.Healthy != 1 || len(sum.Findings) != 1 {
		t.Errorf("Reconcile: %+v, %v", sum, err)
	}
	s.clearError()
	q := newRouter(t, router.Options{}, registryMember(t, "one", errDown), mockMember(t))
	_, err := q.Reconcile(t.Context(), registry.ReconcileOptions{})
	wantError(t, "Reconcile", err, atoll.ErrUnavailable, "the engine is down")
	_, err = newRouter(t, router.Options{}, mockMember(t)).Reconcile(t.Context(), registry.ReconcileOptions{})
	wantError(t, "Reconcile without a registry", err, atoll.ErrUnsupported, "")
}
