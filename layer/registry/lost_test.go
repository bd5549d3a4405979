package registry_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/registry"
)

// checkListed checks that List and the replay of Watch have only the sandbox of st.
func (l *fixture) checkListed(t *testing.T, st atoll.Status) {
	t.Helper()
	for want, f := range map[string]atoll.Filter{
		"no filter": {}, "its name": {Name: "web"}, "its state": {States: []atoll.State{st.State}}, "its provider": {Provider: st.Provider},
	} {
		if all, err := l.List(t.Context(), f); err != nil || len(all) != 1 || asJSON(t, all[0]) != asJSON(t, st) {
			t.Errorf("List by %s: %+v, %v; want %+v", want, all, err, st)
		}
	}
	for not, f := range map[string]atoll.Filter{
		"another name": {Name: "db"}, "another state": {States: []atoll.State{atoll.StateRunning}}, "another label": {Labels: map[string]string{"a": "c"}},
	} {
		if all, err := l.List(t.Context(), f); len(all) > 0 || err != nil {
			t.Errorf("List by %s: %+v, %v", not, all, err)
		}
	}
	var replay []string
	for ev, err := range l.Watch(t.Context()) {
		if err != nil {
			t.Fatalf("Watch: %v", err)
		}
		if ev.Type == atoll.EventSynced {
			break
		}
		replay = append(replay, asJSON(t, ev.Status))
	}
	if len(replay) != 1 || replay[0] != asJSON(t, st) {
		t.Errorf("Watch replays %q, want %+v", replay, st)
	}
}

// A failingEngine cannot create sandboxes while it has a reason.
type failingEngine struct {
	engine
	why *atomic.Pointer[string]
}

func (b failingEngine) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if why := b.why.Load(); why != nil {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnavailable, "%s", *why)
	}
	return b.engine.Create(ctx, spec)
}

// A sandbox whose rebuild failed shows why, in lists too, until a rebuild succeeds.
func TestRebuildFails(t *testing.T) {
	l := newFixture(t, registry.Options{})
	b := failingEngine{l.engine, &atomic.Pointer[string]{}}
	s := teststore.Open(l.dir)
	defer s.Close()
	p := registry.New(b, s, registry.Options{Server: true}) // keeps running, like a server
	sb := l.mustCreate(p, atoll.Spec{Name: "web", Image: image, Labels: map[string]string{"a": "b"}})
	if err := atoll.WriteFile(t.Context(), sb, "kept", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	raw := l.secretOf(sb.ID())
	l.releaseImage("2")
	for _, why := range []string{"the engine is out of order", "the engine has no room", "one line; and another"} {
		text := strings.ReplaceAll(why, "; ", "\n")
		b.why.Store(&text)
		sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
		if err != nil || len(sum.Findings) != 1 || !sum.Findings[0].Failed || !strings.Contains(sum.Findings[0].Reason, text) {
			t.Errorf("Reconcile: %+v, %v; want a failure that says %q", sum, err, why)
		}
		st, err := sb.Status(t.Context())
		if atoll.KindOf(err) == atoll.ErrNotFound { // the sandbox of the handle is gone
			if sb, err = p.Get(t.Context(), sb.ID()); err == nil {
				st, err = sb.Status(t.Context())
			}
		}
		if err != nil || st.State != atoll.StateFailed || !strings.Contains(st.Reason, why) {
			t.Errorf("Status: %+v, %v; want failed because %q", st, err, why)
		}
		l.checkListed(t, st) // also in other programs
	}
	b.why.Store(nil)
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.checkSame(sb.ID(), raw, atoll.StateRunning)
	if all, err := l.List(t.Context(), atoll.Filter{}); err != nil || len(all) != 1 || all[0].State != atoll.StateRunning || all[0].Reason != "" {
		t.Errorf("List: %+v, %v", all, err)
	}
}

// List shows a sandbox as creating, not failed, during its rebuild.
func TestListWhileRebuilt(t *testing.T) {
	var l *fixture
	looked := false
	l = newFixture(t, registry.Options{}.WithStep(func(name string) {
		if name != "half rebuilt" {
			return
		}
		looked = true
		s := teststore.Open(l.dir)
		defer s.Close()
		for _, p := range []atoll.Provider{l, registry.New(l.engine, s, registry.Options{})} {
			all, err := p.List(t.Context(), atoll.Filter{})
			if err != nil || len(all) != 1 || all[0].State != atoll.StateCreating {
				t.Errorf("List: %+v, %v; want one in StateCreating", all, err)
			}
		}
	}))
	l.mustCreate(l, atoll.Spec{Image: image})
	l.releaseImage("2")
	if _, err := l.Reconcile(t.Context(), registry.ReconcileOptions{}); err != nil || !looked {
		t.Errorf("Reconcile: %v; looked: %v", err, looked)
	}
}

// A slowEngine calls a function while it pulls an image.
type slowEngine struct {
	engine
	during func()
}

func (s slowEngine) Prepare(context.Context, *atoll.Spec, func(atoll.Progress)) error {
	s.during()
	return nil
}

// While Reconcile pulls the new image, commands run as usual. A command that still
// runs afterwards prevents the rebuild.
func TestExecWhileFetched(t *testing.T) {
	for _, stays := range []bool{false, true} {
		t.Run(fmt.Sprintf("one stays: %v", stays), func(t *testing.T) {
			l := newFixture(t, registry.Options{})
			sb := l.mustCreate(l, atoll.Spec{Image: image})
			l.releaseImage("2")
			var p *registry.Provider
			fetched := 0
			s := slowEngine{l.engine, func() {
				fetched++
				ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
				defer cancel()
				sb, err := p.Get(ctx, sb.ID())
				if err == nil {
					err = atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}})
				}
				if err == nil && stays {
					_, err = sb.Exec(ctx, &atoll.Command{Args: []string{"cat"}, OpenStdin: true})
				}
				if err != nil {
					t.Errorf("a command during the pull: %v", err)
				}
			}}
			p = registry.New(s, l.store, registry.Options{Server: true})
			want := map[bool]registry.Action{false: registry.DoneRebuilt, true: registry.DoneNothing}[stays]
			sum, err := p.Reconcile(t.Context(), registry.ReconcileOptions{})
			if err != nil || len(sum.Findings) != 1 || sum.Findings[0].Done != want || sum.Findings[0].Failed || fetched != 1 {
				t.Errorf("Reconcile: %+v, %v; want %s; fetched %d times", sum, err, want, fetched)
			}
		})
	}
}
