// Package storetest holds implementations of store.Store to their promises.
package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/store"
)

// Run checks the stores that open makes. Each call of open with the same name
// opens the same store, as another program would; those with another name in the
// same subtest, and in another one, are others. The suite closes what it opened.
func Run(t *testing.T, open func(t *testing.T, name string) store.Store) {
	for _, tt := range []struct {
		name  string
		check func(t *testing.T, open func(name string) store.Store)
	}{
		{"a record is read as it was written", written},
		{"an id has one record, and so has a name in its scope and project", unique},
		{"what has changed since it was read is not written over", changed},
		{"of many who change a record at once, one does", raced},
		{"many can write at once, through many openings", crowded},
		{"of many who insert one name at once, one does", claimed},
		{"there are no more records than there may be, however many insert at once", limited},
		{"records are listed oldest first", listed},
		{"the first secret of an id is kept until it is dropped", secrets},
		{"a holder lives as long as its store is open", holders},
		{"a store has an identity, which no other has", identity},
		{"what is closed refuses", closed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.check(t, func(name string) store.Store {
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

func insert(t *testing.T, s store.Store, r *store.Record, secret string) string {
	t.Helper()
	kept, err := s.Insert(t.Context(), r, secret, 0)
	if err != nil {
		t.Fatalf("Insert: %v", err)
	}
	return kept
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

func written(t *testing.T, open func(string) store.Store) {
	s := open("a")
	r := record("scope", "web")
	r.Spec.Labels = map[string]string{"odd 'key\"": "ü\n"}
	r.Spec.Env = []string{"A=b"}
	r.Spec.TTL = atoll.Duration(time.Hour)
	insert(t, s, r, "")
	r.State, r.Provider, r.Volumes, r.Holder, r.Scope = store.Present, "maker", true, "", "other"
	if err := s.Update(t.Context(), r); err != nil {
		t.Fatalf("Update: %v", err)
	}
	again := open("a")
	got, err := again.Find(t.Context(), r.ID)
	if err != nil {
		t.Fatalf("Find: %v", err)
	}
	same(t, "Find", got, r)
	if got, err = again.Named(t.Context(), "other", r.Spec.Project, "web"); err != nil {
		t.Fatalf("Named: %v", err)
	}
	same(t, "Named", got, r)
	if name, found, err := again.Provider(t.Context(), r.ID); name != "maker" || !found || err != nil {
		t.Errorf("Provider: %q, %v, %v", name, found, err)
	}
	if err := again.Delete(t.Context(), got, false); err != nil {
		t.Errorf("Delete: %v", err)
	}
	_, err = s.Find(t.Context(), r.ID)
	wantKind(t, "Find of what was deleted", err, atoll.ErrNotFound)
	_, err = s.Named(t.Context(), "other", r.Spec.Project, "web")
	wantKind(t, "Named of what was deleted", err, atoll.ErrNotFound)
	if name, found, err := s.Provider(t.Context(), r.ID); name != "" || found || err != nil {
		t.Errorf("Provider of what was deleted: %q, %v, %v", name, found, err)
	}
}

func unique(t *testing.T, open func(string) store.Store) {
	s := open("a")
	r := record("scope", "web")
	insert(t, s, r, "")
	twin := record("scope", "db")
	twin.ID = r.ID
	_, err := s.Insert(t.Context(), twin, "secret", 0)
	wantKind(t, "Insert of an id that is taken", err, atoll.ErrAlreadyExists)
	_, err = s.Insert(t.Context(), record("scope", "web"), "secret", 0)
	wantKind(t, "Insert of a name that is taken", err, atoll.ErrAlreadyExists)
	other := record("scope", "web")
	other.Spec.Project = "other"
	for _, r := range []*store.Record{record("elsewhere", "web"), other, record("scope", ""), record("scope", "")} {
		insert(t, s, r, "")
	}
	other.Spec.Project = atoll.DefaultProject
	wantKind(t, "Update to a name that is taken", s.Update(t.Context(), other), atoll.ErrAlreadyExists)
	if err := s.Delete(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	insert(t, s, record("scope", "web"), "")
	_, err = s.Named(t.Context(), "scope", atoll.DefaultProject, "")
	wantKind(t, "Named of no name", err, atoll.ErrNotFound)
}

func changed(t *testing.T, open func(string) store.Store) {
	a, b := open("a"), open("a")
	r := record("scope", "")
	insert(t, a, r, "")
	stale, err := b.Find(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.State = store.Present
	if err := a.Update(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"Update": b.Update(t.Context(), stale), "Delete": b.Delete(t.Context(), stale, true)} {
		wantKind(t, what+" of what has changed", err, atoll.ErrConflict)
		if !errors.Is(err, store.ErrChanged) {
			t.Errorf("%s: %v, want ErrChanged", what, err)
		}
	}
	if err := a.Delete(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Update of what was deleted", a.Update(t.Context(), r), atoll.ErrConflict)
	wantKind(t, "Delete of what was deleted", a.Delete(t.Context(), r, false), atoll.ErrConflict)
}

func raced(t *testing.T, open func(string) store.Store) {
	r := record("scope", "")
	insert(t, open("a"), r, "")
	var won atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		s := open("a")
		for range 4 {
			mine := *r
			all.Go(func() {
				switch err := s.Update(t.Context(), &mine); {
				case err == nil:
					won.Add(1)
				case atoll.KindOf(err) != atoll.ErrConflict:
					t.Errorf("Update: %v", err)
				}
			})
		}
	}
	all.Wait()
	if n := won.Load(); n != 1 {
		t.Errorf("%d of 16 have changed it", n)
	}
}

// crowded lets the first openings of a store happen at once, too.
func crowded(t *testing.T, open func(string) store.Store) {
	var all sync.WaitGroup
	for i := range 6 {
		s := open("a")
		all.Go(func() {
			for n := range 20 {
				r := record("scope", fmt.Sprintf("n-%d-%d", i, n))
				if _, err := s.Insert(t.Context(), r, "x", 0); err != nil {
					t.Errorf("Insert: %v", err)
					return
				}
				r.State = store.Present
				if err := s.Update(t.Context(), r); err != nil {
					t.Errorf("Update: %v", err)
				}
			}
		})
	}
	all.Wait()
	records, err := open("a").Records(t.Context())
	if err != nil || len(records) != 120 {
		t.Errorf("there are %d records, %v; want 120", len(records), err)
	}
}

func claimed(t *testing.T, open func(string) store.Store) {
	var won atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		s := open("a")
		all.Go(func() {
			switch _, err := s.Insert(t.Context(), record("scope", "web"), "x", 0); {
			case err == nil:
				won.Add(1)
			case atoll.KindOf(err) != atoll.ErrAlreadyExists:
				t.Errorf("Insert: %v", err)
			}
		})
	}
	all.Wait()
	if n := won.Load(); n != 1 {
		t.Errorf("%d of 8 have got the name", n)
	}
}

// limited inserts more records than there may be, through two openings.
func limited(t *testing.T, open func(name string) store.Store) {
	const most, tries = 5, 20
	stores := []store.Store{open("a"), open("a")}
	var made, refused atomic.Int32
	var work sync.WaitGroup
	for i := range tries {
		work.Go(func() {
			_, err := stores[i%2].Insert(t.Context(), record("scope", ""), "x", most)
			switch {
			case err == nil:
				made.Add(1)
			case atoll.KindOf(err) == atoll.ErrExhausted && errors.Is(err, store.ErrLimit):
				refused.Add(1)
			default:
				t.Errorf("Insert: %v", err)
			}
		})
	}
	work.Wait()
	if made.Load() != most || refused.Load() != tries-most {
		t.Errorf("%d were inserted, %d refused; want %d and %d", made.Load(), refused.Load(), most, tries-most)
	}
	all, err := stores[0].Records(t.Context())
	if err != nil || len(all) != most {
		t.Fatalf("%d records, %v; want %d", len(all), err, most)
	}
	if err := stores[1].Delete(t.Context(), all[0], true); err != nil {
		t.Fatal(err)
	}
	if _, err := stores[0].Insert(t.Context(), record("scope", ""), "x", most); err != nil {
		t.Errorf("Insert where there is room: %v", err)
	}
}

func listed(t *testing.T, open func(string) store.Store) {
	s := open("a")
	if all, err := s.Records(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("a new store has %v, %v", all, err)
	}
	var want []string
	for i := range 5 {
		r := record("scope", "")
		r.Created = r.Created.Add(time.Duration(-i) * time.Minute)
		insert(t, s, r, "")
		want = slices.Insert(want, 0, r.ID)
	}
	all, err := s.Records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range all {
		got = append(got, r.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

func secrets(t *testing.T, open func(string) store.Store) {
	s := open("a")
	r := record("scope", "web")
	_, err := s.Secret(t.Context(), r.ID)
	wantKind(t, "Secret of none", err, atoll.ErrNotExist)
	if kept := insert(t, s, r, "first"); kept != "first" {
		t.Errorf("Insert keeps %q", kept)
	}
	if kept, err := s.KeepSecret(t.Context(), "scope", r.ID, "second"); kept != "first" || err != nil {
		t.Errorf("KeepSecret keeps %q, %v", kept, err)
	}
	if err := s.DropSecret(t.Context(), r.ID); err != nil {
		t.Errorf("DropSecret: %v", err)
	}
	holds := func(when, want string) {
		t.Helper()
		if got, err := s.Secret(t.Context(), r.ID); got != want || err != nil {
			t.Errorf("%s: the secret is %q, %v; want %q", when, got, err, want)
		}
	}
	holds("with a record", "first")
	if err := s.Delete(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	holds("without a record", "first")
	if kept, err := s.KeepSecret(t.Context(), "other", atoll.NewID(), "x"); kept != "x" || err != nil {
		t.Errorf("KeepSecret keeps %q, %v", kept, err)
	}
	if all, err := s.Abandoned(t.Context(), "scope"); !slices.Equal(all, []string{r.ID}) || err != nil {
		t.Errorf("Abandoned: %q, %v; want %s", all, err, r.ID)
	}
	if kept := insert(t, s, r, "third"); kept != "first" {
		t.Errorf("Insert keeps %q", kept)
	}
	if all, err := s.Abandoned(t.Context(), "scope"); len(all) != 0 || err != nil {
		t.Errorf("Abandoned: %q, %v; want none", all, err)
	}
	if err := s.Delete(t.Context(), r, true); err != nil {
		t.Fatal(err)
	}
	_, err = s.Secret(t.Context(), r.ID)
	wantKind(t, "Secret of what was deleted with it", err, atoll.ErrNotExist)
	if err := s.DropSecret(t.Context(), r.ID); err != nil {
		t.Errorf("DropSecret of none: %v", err)
	}
}

func holders(t *testing.T, open func(string) store.Store) {
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

func identity(t *testing.T, open func(string) store.Store) {
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

func closed(t *testing.T, open func(string) store.Store) {
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
