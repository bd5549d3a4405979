package system_test

import (
	"context"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/system"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestLayer(t *testing.T) { providertest.CheckLayer(t, system.New) }

func openMock(t *testing.T) *mock.Provider {
	t.Helper()
	p, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider { return system.New(openMock(t)) },
		providertest.Only("create", "watch", "snapshot"),
		providertest.Except("create/programs see the variables that layers add, and layers get back what they added", "the layer refuses it from callers"))
}

// snapshots is a provider with a snapshot of a sandbox about which a layer remembers something.
type snapshots struct{ atoll.ProviderLayer }

func (p snapshots) Info() atoll.Info { return p.Provider.Info() }

func (snapshots) Snapshots(context.Context) ([]atoll.Snapshot, error) {
	return []atoll.Snapshot{{ID: atoll.NewID(), Spec: atoll.Spec{System: atoll.System{Env: []string{"A=layer"}}}}}, nil
}

func (snapshots) RemoveSnapshot(context.Context, string) error { return nil }

// Callers cannot set System, and get none of it, whichever call returns a spec.
func TestSystemIsHidden(t *testing.T) {
	inner := openMock(t)
	p := system.New(snapshots{atoll.ProviderLayer{Provider: inner}})
	spec := &atoll.Spec{System: atoll.System{Notes: map[string]string{"layer.key": "value"}}}
	if _, err := p.Create(t.Context(), spec); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("Create: %v, want it invalid", err)
	}
	if err := atoll.Prepare(t.Context(), p, spec, nil); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("Prepare: %v, want it invalid", err)
	}
	if _, err := session.Open(t.Context(), p, &session.Spec{Scope: session.Scope{Kind: session.ScopeWorkflow, ID: "w"}, Sandbox: *spec}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("OpenSession: %v, want it invalid", err)
	}
	made, err := inner.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Get(t.Context(), made.ID())
	if err != nil {
		t.Fatal(err)
	}
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	specs := map[string]atoll.Spec{"Status": st.Spec}
	all, err := p.List(t.Context(), atoll.Filter{})
	if err != nil || len(all) != 1 {
		t.Fatalf("List: %d, %v", len(all), err)
	}
	specs["List"] = all[0].Spec
	snaps, err := atoll.Snapshots(t.Context(), p)
	if err != nil || len(snaps) != 1 {
		t.Fatalf("Snapshots: %d, %v", len(snaps), err)
	}
	specs["Snapshots"] = snaps[0].Spec
	for ev, err := range p.Watch(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == atoll.EventSynced {
			break
		}
		specs["Watch"] = ev.Status.Spec
	}
	for call, spec := range specs {
		if !spec.System.IsZero() {
			t.Errorf("%s has %+v", call, spec.System)
		}
	}
	if len(specs) != 4 {
		t.Errorf("%d calls had a spec, want 4", len(specs))
	}
	inside, err := made.Status(t.Context())
	if err != nil || inside.Spec.Note("layer.key") != "value" {
		t.Errorf("the layers below get %+v, %v", inside.Spec.System, err)
	}
}
