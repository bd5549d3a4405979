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

// There are never more sandboxes than there may be, whichever program makes
// them, and the error says who has the places.
func TestMost(t *testing.T) {
	const most, tries = 3, 12
	l := newLab(t, registry.Options{Most: most})
	s := teststore.Open(l.dir) // as another program opens it
	defer s.Close()
	other := registry.New(l.engine, s, registry.Options{Most: most, Server: true})
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
		t.Fatalf("%d were made, %d refused; want %d and %d", made.Load(), refused.Load(), most, tries-most)
	}
	all, err := l.List(t.Context(), atoll.Filter{})
	if err != nil || len(all) != most {
		t.Fatalf("there are %d, %v", len(all), err)
	}
	_, err = l.Create(t.Context(), &atoll.Spec{Name: "web"})
	if atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), all[0].ID) || !strings.Contains(err.Error(), "max_sandboxes") {
		t.Errorf("the error is %v, want who has the places and what to do", err)
	}
	// One that went by itself leaves its place to another, and so does a Create that fails.
	sb, err := l.engine.Get(t.Context(), all[0].ID)
	if err == nil {
		err = sb.Remove(t.Context(), atoll.RemoveVolumes())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(t.Context(), &atoll.Spec{Cmd: []string{"no-such-program"}}); atoll.KindOf(err) == atoll.ErrExhausted || err == nil {
		t.Fatalf("Create of what cannot be: %v", err)
	}
	l.create(l, atoll.Spec{Name: "web"})
	if _, err := other.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted {
		t.Errorf("Create of one too many: %v", err)
	}
}

// What programs left behind that were killed takes no place.
func TestMostOfTheKilled(t *testing.T) {
	for _, tt := range []struct{ step, in string }{{"intent", "create"}, {"removing", "remove"}, {"removed", "remove with volumes"}} {
		t.Run(tt.in+" "+tt.step, func(t *testing.T) {
			l := killed(t, tt.step, tt.in)
			p := registry.New(l.engine, l.store, registry.Options{Most: 1, Server: true}) // not closed, which l is
			if _, err := p.Create(t.Context(), &atoll.Spec{Name: "other"}); err != nil {
				t.Errorf("Create: %v", err)
			}
			if l.has(killedID) || l.written(killedID) != "" {
				t.Errorf("the other one is there: %v, written down as %q", l.has(killedID), l.written(killedID))
			}
			if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted {
				t.Errorf("Create of one too many: %v, want ErrExhausted", err)
			}
		})
	}
	t.Run("one that lives keeps its place", func(t *testing.T) {
		l := killed(t, "made", "create")
		p := registry.New(l.engine, l.store, registry.Options{Most: 1, Server: true})
		if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted || !l.has(killedID) {
			t.Errorf("Create: %v, want ErrExhausted; it is there: %v", err, l.has(killedID))
		}
	})
}

// A project has no more than its quota, whichever program makes them; others have
// theirs; and the error says what there is, who has it and when to come back.
func TestQuota(t *testing.T) {
	const most, tries = 3, 12
	opts := registry.Options{Quota: func(project string) store.Quota {
		if project == "free" {
			return store.Quota{}
		}
		return store.Quota{Memory: most * atoll.DefaultMemory}
	}}
	l := newLab(t, opts)
	s := teststore.Open(l.dir) // as another program opens it
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
		t.Fatalf("%d were made, %d refused; want %d and %d", made.Load(), refused.Load(), most, tries-most)
	}
	if _, err := l.Create(t.Context(), spec("free")); err != nil {
		t.Errorf("Create without a quota: %v", err)
	}
	all, err := l.List(t.Context(), atoll.Filter{Project: "full"})
	if err != nil || len(all) != most {
		t.Fatalf("there are %d, %v", len(all), err)
	}
	theirs, err := l.List(t.Context(), atoll.Filter{Project: "other"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Create(t.Context(), spec("full"))
	for _, want := range []string{"project full may have 6g memory, of which 6g are used, and this asks for 2g", all[0].ID, "quotas.full.memory"} {
		if atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	if strings.Contains(err.Error(), theirs[0].ID) {
		t.Errorf("the error names another project's: %v", err)
	}
	if after, known := atoll.RetryAfter(err); !known || after < 20*time.Second || after > 40*time.Second {
		t.Errorf("come back after %s, %v", after, known)
	}
	// One that goes by itself makes room, and who waits gets it.
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
		if err == nil && ttl < time.Minute { // a busy machine: that one has gone already
			if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if after, known := atoll.RetryAfter(err); !known || after > ttl+time.Second {
			t.Errorf("come back after %s, %v: %v; one goes in %s", after, known, err, ttl)
		}
		break
	}
	if _, err := atoll.CreateInTime(ctx, l, spec("full")); err != nil {
		t.Errorf("CreateInTime: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	if _, err := atoll.CreateInTime(ended, ending{l, end}, spec("full")); atoll.KindOf(err) != atoll.ErrExhausted {
		t.Errorf("CreateInTime that nobody waits for: %v", err)
	}
}

// ending is a provider whose caller gives up when the answer comes.
type ending struct {
	atoll.Provider
	end func()
}

func (e ending) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	defer e.end()
	return e.Provider.Create(ctx, spec)
}
