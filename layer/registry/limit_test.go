package registry_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Several programs together never exceed the limit, and the error names the
// sandboxes that count.
func TestMost(t *testing.T) {
	const most, tries = 3, 12
	l := newFixture(t, registry.Options{MaxSandboxes: most})
	s := teststore.Open(l.dir) // as in another program
	defer s.Close()
	other := registry.New(l.engine, s, registry.Options{MaxSandboxes: most, Server: true})
	var made, refused atomic.Int32
	var work sync.WaitGroup
	for i := range tries {
		work.Go(func() {
			p := []atoll.Provider{l, other}[i%2]
			_, err := p.Create(t.Context(), &atoll.Spec{})
			switch {
			case err == nil:
				made.Add(1)
			case atoll.KindOf(err) == atoll.ErrExhausted:
				refused.Add(1)
			default:
				t.Errorf("Create: %v", err)
			}
		})
	}
	work.Wait()
	if made.Load() != most || refused.Load() != tries-most {
		t.Fatalf("%d created, %d refused; want %d and %d", made.Load(), refused.Load(), most, tries-most)
	}
	all, err := l.List(t.Context(), atoll.Filter{})
	if err != nil || len(all) != most {
		t.Fatalf("List returned %d, %v", len(all), err)
	}
	_, err = l.Create(t.Context(), &atoll.Spec{Name: "web"})
	if atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), all[0].ID) || !strings.Contains(err.Error(), "max_sandboxes") {
		t.Errorf("got error %v, want the names of sandboxes and what to do", err)
	}
	// A sandbox that is gone does not count, and neither does a failed Create.
	sb, err := l.engine.Get(t.Context(), all[0].ID)
	if err == nil {
		err = sb.Remove(t.Context(), atoll.RemoveVolumes())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(t.Context(), &atoll.Spec{Cmd: []string{"no-such-program"}}); atoll.KindOf(err) == atoll.ErrExhausted || err == nil {
		t.Fatalf("Create of a sandbox that cannot start: %v", err)
	}
	l.mustCreate(l, atoll.Spec{Name: "web"})
	if _, err := other.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted {
		t.Errorf("Create above the limit: %v", err)
	}
}

// The error names sandboxes by the names that users know, also those from a pool.
func TestLimitNamesSandboxes(t *testing.T) {
	l := newFixture(t, registry.Options{MaxSandboxes: 4})
	web, plain := l.mustCreate(l, atoll.Spec{Name: "web"}), l.mustCreate(l, atoll.Spec{})
	claimed, stock := l.mustCreate(l, atoll.Spec{}), l.mustCreate(l, atoll.Spec{})
	holder, err := l.store.Holder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range []atoll.Sandbox{claimed, stock} {
		w := &store.Warm{ID: sb.ID(), Project: atoll.DefaultProject, Scope: "scope", Pool: "small", Holder: holder, Made: time.Now()}
		err := l.store.InsertWarm(t.Context(), w)
		if err == nil && sb == claimed {
			w.Name, w.Claimed = "from-pool", time.Now()
			err = l.store.ClaimWarm(t.Context(), w)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = l.Create(t.Context(), &atoll.Spec{Name: "next"})
	for _, want := range []string{"web (", plain.ID() + " (", "from-pool (", stock.ID() + ", warm in the pool small (", "with atoll rm", "max_sandboxes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
	if err != nil && (strings.Contains(err.Error(), web.ID()) || strings.Contains(err.Error(), claimed.ID())) {
		t.Errorf("the error %v has the ids of sandboxes with names", err)
	}
}

// Leftovers of dead programs do not count.
func TestKilledDoesNotCount(t *testing.T) {
	for _, tt := range []struct{ step, in string }{{"intent", "create"}, {"removing", "remove"}, {"removed", "remove with volumes"}} {
		t.Run(tt.in+" "+tt.step, func(t *testing.T) {
			l := openKilled(t, tt.step, tt.in)
			p := registry.New(l.engine, l.store, registry.Options{MaxSandboxes: 1, Server: true}) // the fixture closes the store
			if _, err := p.Create(t.Context(), &atoll.Spec{Name: "other"}); err != nil {
				t.Errorf("Create: %v", err)
			}
			if l.exists(killedID) || l.recordState(killedID) != "" {
				t.Errorf("old sandbox exists: %v, its record is %q", l.exists(killedID), l.recordState(killedID))
			}
			if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted {
				t.Errorf("Create of one too many: %v, want ErrExhausted", err)
			}
		})
	}
	t.Run("an existing sandbox counts", func(t *testing.T) {
		l := openKilled(t, "made", "create")
		p := registry.New(l.engine, l.store, registry.Options{MaxSandboxes: 1, Server: true})
		if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted || !l.exists(killedID) {
			t.Errorf("Create: %v, want ErrExhausted; sandbox exists: %v", err, l.exists(killedID))
		}
	})
}

// Several programs together never exceed the quota of a project; other projects
// have their own. The error says what is used, by which sandboxes, and when to
// retry.
func TestQuota(t *testing.T) {
	const most, tries = 3, 12
	opts := registry.Options{Quota: func(project string) store.Quota {
		if project == "free" {
			return store.Quota{}
		}
		return store.Quota{Memory: most * atoll.DefaultMemory}
	}}
	l := newFixture(t, opts)
	s := teststore.Open(l.dir) // as in another program
	defer s.Close()
	opts.Server = true
	other := registry.New(l.engine, s, opts)
	spec := func(project string) *atoll.Spec {
		return &atoll.Spec{Project: project, TTL: atoll.Duration(time.Hour)}
	}
	var made, refused atomic.Int32
	var work sync.WaitGroup
	for i := range tries {
		p := []atoll.Provider{l, other}[i%2]
		work.Go(func() {
			_, err := p.Create(t.Context(), spec("full"))
			switch {
			case err == nil:
				made.Add(1)
			case atoll.KindOf(err) == atoll.ErrExhausted:
				refused.Add(1)
			default:
				t.Errorf("Create: %v", err)
			}
		})
		for _, project := range []string{"other", "free"} {
			if i < most {
				work.Go(func() {
					if _, err := p.Create(t.Context(), spec(project)); err != nil {
						t.Errorf("Create in %s: %v", project, err)
					}
				})
			}
		}
	}
	work.Wait()
	if made.Load() != most || refused.Load() != tries-most {
		t.Fatalf("%d created, %d refused; want %d and %d", made.Load(), refused.Load(), most, tries-most)
	}
	if _, err := l.Create(t.Context(), spec("free")); err != nil {
		t.Errorf("Create without a quota: %v", err)
	}
	all, err := l.List(t.Context(), atoll.Filter{Project: "full"})
	if err != nil || len(all) != most {
		t.Fatalf("List returned %d, %v", len(all), err)
	}
	theirs, err := l.List(t.Context(), atoll.Filter{Project: "other"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Create(t.Context(), spec("full"))
	for _, want := range []string{"project full exceeds its quota of memory: requested 2g, used 6g of 6g", all[0].ID, "quotas.full.memory"} {
		if atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
	if strings.Contains(err.Error(), theirs[0].ID) {
		t.Errorf("the error names a sandbox of another project: %v", err)
	}
	if after, known := atoll.RetryAfter(err); !known || after < 20*time.Second || after > 40*time.Second {
		t.Errorf("retry after %s, %v", after, known)
	}
	// An expired sandbox makes room for a waiting call.
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(3*time.Minute))
	defer cancel()
	sb, err := l.Get(t.Context(), all[0].ID)
	if err == nil {
		err = sb.Remove(t.Context(), atoll.RemoveVolumes())
	}
	if err != nil {
		t.Fatal(err)
	}
	for ttl := 2 * time.Second; ; ttl *= 4 {
		short := spec("full")
		short.TTL = atoll.Duration(ttl)
		if _, err := l.Create(ctx, short); err != nil {
			t.Fatal(err)
		}
		sb, err := l.Create(ctx, spec("full"))
		if err == nil && ttl < time.Minute { // on a busy machine it has expired already
			if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if after, known := atoll.RetryAfter(err); !known || after > ttl+time.Second {
			t.Errorf("retry after %s, %v: %v; one expires in %s", after, known, err, ttl)
		}
		break
	}
	if _, err := atoll.CreateWithRetry(ctx, l, spec("full")); err != nil {
		t.Errorf("CreateWithRetry: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	if _, err := atoll.CreateWithRetry(ended, cancelingProvider{l, end}, spec("full")); atoll.KindOf(err) != atoll.ErrExhausted {
		t.Errorf("CreateWithRetry with a canceled context: %v", err)
	}
}

// cancelingProvider is a provider whose caller gives up when Create returns.
type cancelingProvider struct {
	atoll.Provider
	end func()
}

func (e cancelingProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	defer e.end()
	return e.Provider.Create(ctx, spec)
}
