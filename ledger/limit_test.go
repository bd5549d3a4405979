package ledger_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/ledger"
)

// There are never more sandboxes than there may be, whichever program makes
// them, and the error says who has the places.
func TestMost(t *testing.T) {
	const most, tries = 3, 12
	l := newLab(t, ledger.Options{Most: most})
	other := ledger.New(l.engine, l.store, ledger.Options{Most: most, Server: true}) // of the same store; not closed, which l is
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
