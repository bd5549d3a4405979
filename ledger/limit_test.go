package ledger_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/ledger"
	"github.com/seed46cd37a8/atoll/store"
)

// There are never more sandboxes than there may be, whichever program makes
// them, and the error says who has the places.
func TestMost(t *testing.T) {
	const most, tries = 3, 12
	l := newLab(t, ledger.Options{Most: most})
	s := store.NewSQLite(l.store.Path()) // as another program opens it
	defer s.Close()
	other := ledger.New(l.engine, s, ledger.Options{Most: most, Server: true})
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
			p := ledger.New(l.engine, l.store, ledger.Options{Most: 1, Server: true}) // not closed, which l is
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
		p := ledger.New(l.engine, l.store, ledger.Options{Most: 1, Server: true})
		if _, err := p.Create(t.Context(), &atoll.Spec{}); atoll.KindOf(err) != atoll.ErrExhausted || !l.has(killedID) {
			t.Errorf("Create: %v, want ErrExhausted; it is there: %v", err, l.has(killedID))
		}
	})
}
