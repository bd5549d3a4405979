// Package storetest holds implementations of store.Store, session.Store and store.Conversations to
// their promises.
package storetest

import (
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A Store stores everything that the suite checks.
type Store interface {
	store.Store
	session.Store
}

// Run checks the stores that open makes. Each call of open with the same name
// opens the same store, as another program would; those with another name in the
// same subtest, and in another one, are others. The suite closes what it opened.
func Run(t *testing.T, open func(t *testing.T, name string) Store) {
	for _, tt := range []struct {
		name  string
		check func(t *testing.T, open func(name string) Store)
	}{
		{"a record is read as it was written", written},
		{"an id has one record, and so has a name in its scope and project", unique},
		{"what has changed since it was read is not written over", changed},
		{"of many who change a record at once, one does", raced},
		{"many can write at once, through many openings", crowded},
		{"of many who insert one name at once, for whichever scope, one does", claimed},
		{"who is about to make a sandbox gets no name that one of another scope has", apart},
		{"there are no more records than there may be, however many insert at once", limited},
		{"a project has no more than its quota, however many insert at once, and keeps no other from its own", quotas},
		{"a quota counts what sandboxes ask for, and says what there is", quotaCounts},
		{"records are listed oldest first", listed},
		{"those of a scope in a state are listed", stated},
		{"what has gone is remembered with its secret, until it is there again", forgotten},
		{"the first secret of an id is kept until it is dropped", secrets},
		{"a session is kept as it was written, and not written over by who has not read it", sessions},
		{"of many who insert one session at once, one does", boundOnce},
		{"stock is claimed once, by its holder, and dropped for good", stock},
		{"of many who claim one name at once, for stock or a record, one does", claimedOnce},
		{"a holder lives as long as its store is open", holders},
		{"a store has an identity, which no other has", identity},
		{"what is closed refuses", closed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.check(t, func(name string) Store {
				s := open(t, name)
				t.Cleanup(func() {
					for range 2 {
						if err := s.Close(); err != nil {
							t.Errorf("Close: %v", err)
						}
					}
				})
				return s
			})
		})
	}
}

// record is one with a name, or without.
func record(scope, name string) *store.Record {
	id := atoll.NewID()
	return &store.Record{
		ID: id, Scope: scope, State: store.Creating, Holder: "somebody", Created: time.Now().Truncate(time.Millisecond),
		Spec: atoll.Spec{ID: id, Name: name, Project: atoll.DefaultProject},
	}
}

func insert(t *testing.T, s Store, r *store.Record, secret string) string {
	t.Helper()
	kept, err := s.Insert(t.Context(), r, secret, store.Room{})
	if err != nil {
		t.Fatalf("Insert: %v", err)
	}
	return kept
}

// oneWins makes all claims at the same time: one has what all want, and the others get
// the error refused.
func oneWins(t *testing.T, claims []func() error, refused error) {
	t.Helper()
	var won atomic.Int32
	var all sync.WaitGroup
	for _, claim := range claims {
		all.Go(func() {
			switch err := claim(); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, refused):
				t.Errorf("who came too late: %v, want %v", err, refused)
			}
		})
	}
	all.Wait()
	if n := won.Load(); n != 1 {
		t.Errorf("%d of %d have it", n, len(claims))
	}
}

func wantKind(t *testing.T, what string, err error, want atoll.Kind) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func same(t *testing.T, what string, got, want *store.Record) {
	t.Helper()
	if got == nil || !got.Created.Equal(want.Created) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
		return
	}
	g, w := *got, *want
	g.Created, w.Created = time.Time{}, time.Time{}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s:\n%+v, want\n%+v", what, g, w)
	}
}

func holders(t *testing.T, open func(string) Store) {
	a, b := open("a"), open("a")
	name, err := a.Holder(t.Context())
	if err != nil || name == "" {
		t.Fatalf("Holder: %q, %v", name, err)
	}
	if again, err := a.Holder(t.Context()); again != name || err != nil {
		t.Errorf("Holder is %q and then %q, %v", name, again, err)
	}
	if other, err := b.Holder(t.Context()); other == name || err != nil {
		t.Errorf("two holders are called %q, %v", other, err)
	}
	alive := func(name string) bool {
		t.Helper()
		ok, err := b.Alive(t.Context(), name)
		if err != nil {
			t.Errorf("Alive(%q): %v", name, err)
		}
		return ok
	}
	if !alive(name) {
		t.Error("one that has the store open is not alive")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{name, "", atoll.NewID(), "../../etc/passwd"} {
		if alive(name) {
			t.Errorf("%q is alive", name)
		}
	}
}

func identity(t *testing.T, open func(string) Store) {
	before := time.Now().Truncate(time.Millisecond)
	a, err := open("a").Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a.ID == "" || a.Born.Before(before) || a.Born.After(time.Now()) {
		t.Errorf("Identity is %+v", a)
	}
	if again, err := open("a").Identity(t.Context()); err != nil || again.ID != a.ID || !again.Born.Equal(a.Born) {
		t.Errorf("Identity is %+v, then %+v, %v", a, again, err)
	}
	if other, err := open("b").Identity(t.Context()); err != nil || other.ID == a.ID {
		t.Errorf("another store has the same identity %+v, %v", other, err)
	}
}

func closed(t *testing.T, open func(string) Store) {
	s := open("a")
	r := record("scope", "")
	insert(t, s, r, "")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, find := s.Find(t.Context(), r.ID)
	_, holder := s.Holder(t.Context())
	for what, err := range map[string]error{"Update": s.Update(t.Context(), r), "Find": find, "Holder": holder} {
		wantKind(t, what, err, atoll.ErrUnavailable)
	}
}
