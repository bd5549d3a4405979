package system_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/system"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/server/auth"
)

func TestLayer(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return system.New(p, system.Options{}) })
}

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
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		return system.New(openMock(t), system.Options{HostDirs: []string{t.TempDir()}})
	},
		providertest.Only("create", "watch", "snapshot"),
		providertest.Except("create/programs see the variables that layers add, and layers get back what they added", "the layer refuses it from callers"))
}

// broken is a provider whose errors and reasons name files of the host.
type broken struct {
	atoll.ProviderLayer
	err    error
	reason string
}

func (p broken) Info() atoll.Info { return p.Provider.Info() }

func (p broken) Get(context.Context, string) (atoll.Sandbox, error) { return nil, p.err }

func (p broken) List(context.Context, atoll.Filter) ([]atoll.Status, error) {
	return []atoll.Status{{Reason: p.reason}}, nil
}

func (p broken) Watch(context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		_ = yield(atoll.Event{Status: atoll.Status{Reason: p.reason}}, nil) && yield(atoll.Event{}, p.err)
	}
}

// Users of projects get the reason without the paths of the host; the admin gets everything.
func TestPathsAreHidden(t *testing.T) {
	const full = "open /home/ann/.local/state/atoll/gvisor/records/x: no space left on device, see /run/user/7/atoll/log"
	const hidden = "open [host]/gvisor/records/x: no space left on device, see [host]/log"
	inner := broken{atoll.ProviderLayer{Provider: openMock(t)}, nil, full}
	inner.err = fmt.Errorf("two layers: %w", atoll.E("get", "web", atoll.ErrExhausted, atoll.WithRetryAfter(errors.New(full), time.Second)))
	p := system.New(inner, system.Options{HostDirs: []string{"/home/ann/.local/state/atoll", "/run/user/7/atoll", "/", ""}})
	ctx := auth.WithAccount(t.Context(), auth.Account{Name: "ci", Role: auth.RoleProject, Projects: []string{"shop"}})
	for _, tt := range []struct {
		ctx  context.Context
		want string
	}{{ctx, hidden}, {t.Context(), full}} {
		_, err := p.Get(tt.ctx, "web")
		after, _ := atoll.RetryAfter(err)
		if !strings.HasSuffix(fmt.Sprint(err), "get web: "+tt.want) || atoll.KindOf(err) != atoll.ErrExhausted || after != time.Second {
			t.Errorf("Get: %v (%s, after %s), want %s", err, atoll.KindOf(err), after, tt.want)
		}
		all, err := p.List(tt.ctx, atoll.Filter{})
		if err != nil || len(all) != 1 || all[0].Reason != tt.want {
			t.Errorf("List: %+v, %v, want the reason %s", all, err, tt.want)
		}
		var last error
		for ev, err := range p.Watch(tt.ctx) {
			if last = err; err == nil && ev.Status.Reason != tt.want {
				t.Errorf("Watch: %q, want %s", ev.Status.Reason, tt.want)
			}
		}
		if !strings.HasSuffix(fmt.Sprint(last), tt.want) {
			t.Errorf("Watch ends with %v, want %s", last, tt.want)
		}
	}
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
	p := system.New(snapshots{atoll.ProviderLayer{Provider: inner}}, system.Options{})
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
