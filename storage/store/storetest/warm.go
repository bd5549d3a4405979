package storetest

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// newWarm returns a warm sandbox in stock.
func newWarm(scope string) *store.Warm {
	return &store.Warm{
		ID: atoll.NewID(), Project: atoll.DefaultProject, Scope: scope, Pool: "small", Holder: "somebody", Made: time.Now().Truncate(time.Millisecond),
	}
}

func insertWarm(t *testing.T, s Store, w *store.Warm) {
	t.Helper()
	if err := s.InsertWarm(t.Context(), w); err != nil {
		t.Fatalf("InsertWarm: %v", err)
	}
}

func wantSameWarm(t *testing.T, what string, got, want *store.Warm) {
	t.Helper()
	if got == nil || !got.Made.Equal(want.Made) || !got.Claimed.Equal(want.Claimed) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
		return
	}
	g, w := *got, *want
	g.Made, g.Claimed, w.Made, w.Claimed = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s:\n%+v, want\n%+v", what, g, w)
	}
}

func checkWarmLifecycle(t *testing.T, open func(string) Store) {
	a, b := open("a"), open("a")
	w := newWarm("p")
	_, err := a.FindWarm(t.Context(), w.ID)
	wantKind(t, "FindWarm of a missing one", err, atoll.ErrNotExist)
	if all, err := a.Warm(t.Context(), "p"); err != nil || len(all) > 0 {
		t.Errorf("Warm of a missing store: %+v, %v", all, err)
	}
	if err := a.DropWarm(t.Context(), w.ID); err != nil {
		t.Errorf("DropWarm of a missing one: %v", err)
	}
	insertWarm(t, a, w)
	wantKind(t, "InsertWarm again", b.InsertWarm(t.Context(), w), atoll.ErrAlreadyExists)
	found, err := b.FindWarm(t.Context(), w.ID)
	if err != nil {
		t.Fatalf("FindWarm: %v", err)
	}
	wantSameWarm(t, "FindWarm", found, w)

	c := *w
	c.Name, c.Labels, c.TTL, c.Claimed = "web", map[string]string{"k": "ü\n"}, atoll.Duration(time.Hour), w.Made.Add(time.Second)
	stranger := c
	stranger.Holder = "somebody else"
	refused := b.ClaimWarm(t.Context(), &stranger)
	wantKind(t, "ClaimWarm of another holder's stock", refused, atoll.ErrConflict)
	if !errors.Is(refused, store.ErrChanged) {
		t.Errorf("ClaimWarm: %v, want ErrChanged", refused)
	}
	first := c
	if err := b.ClaimWarm(t.Context(), &c); err != nil || c.Holder != "" {
		t.Fatalf("ClaimWarm: %v, and the holder is %q", err, c.Holder)
	}
	wantKind(t, "ClaimWarm again", a.ClaimWarm(t.Context(), &first), atoll.ErrConflict)
	named, err := a.WarmNamed(t.Context(), c.Project, "web")
	if err != nil {
		t.Fatalf("WarmNamed: %v", err)
	}
	wantSameWarm(t, "WarmNamed", named, &c)
	for _, at := range [][2]string{{"other", "web"}, {c.Project, "none"}, {c.Project, ""}} {
		_, err := a.WarmNamed(t.Context(), at[0], at[1])
		wantKind(t, "WarmNamed of a missing one", err, atoll.ErrNotExist)
	}

	late, other := newWarm("p"), newWarm("q")
	late.Made = late.Made.Add(time.Minute)
	insertWarm(t, b, late)
	insertWarm(t, a, other)
	for scope, want := range map[string][]*store.Warm{"p": {&c, late}, "q": {other}, "none": nil} {
		all, err := b.Warm(t.Context(), scope)
		if err != nil || len(all) != len(want) {
			t.Fatalf("Warm of %s: %+v, %v; want %+v", scope, all, err, want)
		}
		for i := range want {
			wantSameWarm(t, "Warm", all[i], want[i])
		}
	}
	next := *late
	next.Name, next.Claimed = "web", late.Made
	wantKind(t, "ClaimWarm with a used name", a.ClaimWarm(t.Context(), &next), atoll.ErrAlreadyExists)
	if err := a.DropWarm(t.Context(), c.ID); err != nil {
		t.Errorf("DropWarm: %v", err)
	}
	_, err = b.FindWarm(t.Context(), c.ID)
	wantKind(t, "FindWarm of a dropped one", err, atoll.ErrNotExist)
	if err := a.ClaimWarm(t.Context(), &next); err != nil {
		t.Errorf("ClaimWarm with a free name: %v", err)
	}
}

// checkWarmNameRaced claims one name for warm sandboxes and records at once.
func checkWarmNameRaced(t *testing.T, open func(string) Store) {
	insertRecord(t, open("a"), newRecord("scope", "box"), "")
	taken := newWarm("p")
	insertWarm(t, open("a"), taken)
	taken.Name, taken.Claimed = "box", taken.Made
	wantKind(t, "ClaimWarm with the name of a record", open("a").ClaimWarm(t.Context(), taken), atoll.ErrAlreadyExists)

	var claims []func() error
	for range 8 {
		s, w := open("a"), newWarm("p")
		insertWarm(t, s, w)
		w.Name, w.Claimed = "web", w.Made
		claims = append(claims, func() error { return s.ClaimWarm(t.Context(), w) })
	}
	oneWins(t, claims, atoll.ErrAlreadyExists)
}
