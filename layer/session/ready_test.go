package session_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// withStock returns a pool around box with one warm sandbox that matches sessions
// with the default lifetime.
func withStock(t *testing.T, box atoll.Provider, dir string) (p *pool.Provider, stock string) {
	t.Helper()
	db := func() teststore.Store { return teststore.Open(filepath.Join(dir, "pool")) }
	p, err := pool.New(registry.New(box, db(), registry.Options{Server: true}), db(), pool.Options{Server: true, Entries: []pool.Entry{
		{Name: "ready", Min: 1, Spec: atoll.Spec{IdleStop: atoll.Never, TTL: session.DefaultMaxLifetime}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		r, err := p.Pools(t.Context())
		if err == nil && r.Pools[0].Warm == 0 {
			err = fmt.Errorf("got pool %+v", r.Pools[0])
		}
		if err == nil {
			stock = r.Pools[0].Stock[0]
		}
		return err
	})
	return p, stock
}

// A session reserves a warm sandbox, and records its ID before it creates it.
func TestReserved(t *testing.T) {
	dir := t.TempDir()
	below, stock := withStock(t, openBackend(t, mock.Options{}), dir)
	p := newLayer(below, dir, session.Options{IdleTimeout: atoll.Never})
	defer p.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	sb, err := p.Get(t.Context(), o.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	st, err := sb.Status(t.Context())
	if err != nil || o.Sandbox != stock || o.Opening != session.OpeningMade || st.Spec.Labels[session.LabelSession] != o.Key || st.Expires.IsZero() || !o.Expires.Equal(st.Expires) {
		t.Errorf("got session %+v, %v; its sandbox is %+v, reserved was %s", o, err, st, stock)
	}
	if again := mustOpen(t, p, workflowSpec("w")); again.Sandbox != o.Sandbox || again.Opening != session.OpeningFound {
		t.Errorf("second open: %+v", again)
	}
	if err := p.CloseSession(t.Context(), "", o.Key); err != nil {
		t.Error(err)
	}
	if _, err := p.Get(t.Context(), o.Sandbox); atoll.KindOf(err) != atoll.ErrNotFound {
		t.Errorf("after the end the sandbox exists: %v", err)
	}
}

// If a program dies before the session has the reserved sandbox, the next program
// can open the session. If it dies afterwards, the session has that sandbox.
func TestReservedAndKilled(t *testing.T) {
	for _, step := range []string{"intent", "made"} {
		t.Run(step, func(t *testing.T) {
			box, dir := openBackend(t, mock.Options{}), t.TempDir()
			below, stock := withStock(t, box, dir)
			cut := newLayer(below, dir, session.Options{IdleTimeout: atoll.Never}.WithStep(func(name string) {
				if name == step {
					runtime.Goexit()
				}
			}))
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err := cut.OpenSession(t.Context(), workflowSpec("w"))
				t.Errorf("OpenSession reached its end: %v", err)
			}()
			<-done
			if err := cut.Close(); err != nil {
				t.Fatal(err)
			}
			below, _ = withStock(t, box, dir)
			p := newLayer(below, dir, session.Options{IdleTimeout: atoll.Never})
			defer p.Close()
			o := mustOpen(t, p, workflowSpec("w"))
			if o.Note != "" || o.Opening == session.OpeningReplaced || (o.Sandbox == stock) != (step == "made") {
				t.Errorf("got session %+v, reserved was %s", o, stock)
			}
			if err := checkCounts(t.Context(), p, 1, 1); err != nil {
				t.Error(err)
			}
		})
	}
}
