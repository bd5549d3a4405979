// Package storetest tests implementations of the interfaces of package store and of session.Store.
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

// A Store stores everything that Run checks.
type Store interface {
	store.Store
	session.Store
}

// Run checks the stores that open returns. Each call of open with the same name in a subtest opens the same store, as
// another program would. Another name or subtest means another store. Run closes the stores.
func Run(t *testing.T, open func(t *testing.T, name string) Store) {
	for _, tt := range []struct {
		name  string
		check func(t *testing.T, open func(name string) Store)
	}{
		{"a record is read back unchanged", checkRecordRoundTrip},
		{"an id has one record, and so has a name within scope and project", checkRecordUnique},
		{"a record that changed since it was read is not overwritten", checkRecordChanged},
		{"of concurrent updates of a record, one succeeds", checkRecordRaced},
		{"many programs can write at once", checkConcurrentWrites},
		{"of concurrent inserts of a name in any scope, one succeeds", checkNameRaced},
		{"a new sandbox cannot have the name of a sandbox in another scope", checkNameAcrossScopes},
		{"concurrent inserts do not exceed the limit of records", checkRecordLimit},
		{"concurrent inserts do not exceed the quota of a project, nor affect other projects", checkQuotaEnforced},
		{"a quota counts the requests of sandboxes, and its error has the amounts", checkQuotaCounts},
		{"records are listed oldest first", checkRecordOrder},
		{"the records of a scope in a state are listed", checkRecordsInState},
		{"a forgotten sandbox is remembered with its secret until it is inserted again", checkRecordForgotten},
		{"the first secret of an id remains until it is dropped", checkSecretLifecycle},
		{"a session is read back unchanged, and not overwritten from an old revision", checkSessionLifecycle},
		{"of concurrent inserts of a session, one succeeds", checkSessionRaced},
		{"a warm sandbox is claimed once, by its holder, and dropped for good", checkWarmLifecycle},
		{"of concurrent claims of a name by warm sandboxes and records, one succeeds", checkWarmNameRaced},
		{"a holder is alive while its store is open", checkHolderLifecycle},
		{"a store has a unique identity", checkStoreIdentity},
		{"a closed store refuses calls", checkStoreClosed},
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

// newRecord returns a record with a name, or without one if name is "".
func newRecord(scope, name string) *store.Record {
	id := atoll.NewID()
	return &store.Record{
		ID: id, Scope: scope, State: store.Creating, Holder: "somebody", Created: time.Now().Truncate(time.Millisecond),
		Spec: atoll.Spec{ID: id, Name: name, Project: atoll.DefaultProject},
	}
}

func insertRecord(t *testing.T, s Store, r *store.Record, secret string) string {
	t.Helper()
	kept, err := s.Insert(t.Context(), r, secret, store.Limits{})
	if err != nil {
		t.Fatalf("Insert: %v", err)
	}
	return kept
}

// oneWins runs all claims at the same time. One must succeed, and the others must fail with refused.
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
				t.Errorf("a losing claim: %v, want %v", err, refused)
			}
		})
	}
	all.Wait()
	if n := won.Load(); n != 1 {
		t.Errorf("%d of %d claims succeeded, want 1", n, len(claims))
	}
}

func wantKind(t *testing.T, what string, err error, want atoll.Kind) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func wantSameRecord(t *testing.T, what string, got, want *store.Record) {
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

func checkHolderLifecycle(t *testing.T, open func(string) Store) {
	a, b := open("a"), open("a")
	name, err := a.Holder(t.Context())
	if err != nil || name == "" {
		t.Fatalf("Holder: %q, %v", name, err)
	}
	if again, err := a.Holder(t.Context()); again != name || err != nil {
		t.Errorf("Holder is %q and then %q, %v", name, again, err)
	}
	if other, err := b.Holder(t.Context()); other == name || err != nil {
		t.Errorf("two holders have the name %q, %v", other, err)
	}
	alive := func(name string) bool {
		t.Helper()
		ok, err := b.IsAlive(t.Context(), name)
		if err != nil {
			t.Errorf("Alive(%q): %v", name, err)
		}
		return ok
	}
	if !alive(name) {
		t.Error("the holder of an open store is not alive")
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

func checkStoreIdentity(t *testing.T, open func(string) Store) {
	before := time.Now().Truncate(time.Millisecond)
	a, err := open("a").Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a.ID == "" || a.Created.Before(before) || a.Created.After(time.Now()) {
		t.Errorf("Identity is %+v", a)
	}
	if again, err := open("a").Identity(t.Context()); err != nil || again.ID != a.ID || !again.Created.Equal(a.Created) {
		t.Errorf("Identity is %+v, then %+v, %v", a, again, err)
	}
	if other, err := open("b").Identity(t.Context()); err != nil || other.ID == a.ID {
		t.Errorf("another store has the same identity %+v, %v", other, err)
	}
}

func checkStoreClosed(t *testing.T, open func(string) Store) {
	s := open("a")
	r := newRecord("scope", "")
	insertRecord(t, s, r, "")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, find := s.Find(t.Context(), r.ID)
	_, holder := s.Holder(t.Context())
	for what, err := range map[string]error{"Update": s.Update(t.Context(), r), "Find": find, "Holder": holder} {
		wantKind(t, what, err, atoll.ErrUnavailable)
	}
}
