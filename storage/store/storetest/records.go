package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

func checkRecordRoundTrip(t *testing.T, open func(string) Store) {
	s := open("a")
	r := newRecord("scope", "web")
	r.Spec.Labels = map[string]string{"odd 'key\"": "ü\n"}
	r.Spec.Env = []string{"A=b"}
	r.Spec.TTL = atoll.Duration(time.Hour)
	insertRecord(t, s, r, "")
	r.State, r.Provider, r.Volumes, r.Holder, r.Scope = store.Present, "maker", true, "", "other"
	r.Reason = "no image"
	if err := s.Update(t.Context(), r); err != nil {
		t.Fatalf("Update: %v", err)
	}
	again := open("a")
	got, err := again.Find(t.Context(), r.ID)
	if err != nil {
		t.Fatalf("Find: %v", err)
	}
	wantSameRecord(t, "Find", got, r)
	if got, err = again.Named(t.Context(), "other", r.Spec.Project, "web"); err != nil {
		t.Fatalf("Named: %v", err)
	}
	wantSameRecord(t, "Named", got, r)
	if name, found, err := again.Provider(t.Context(), r.ID); name != "maker" || !found || err != nil {
		t.Errorf("Provider: %q, %v, %v", name, found, err)
	}
	if err := again.Delete(t.Context(), got, false); err != nil {
		t.Errorf("Delete: %v", err)
	}
	_, err = s.Find(t.Context(), r.ID)
	wantKind(t, "Find of a deleted record", err, atoll.ErrNotFound)
	_, err = s.Named(t.Context(), "other", r.Spec.Project, "web")
	wantKind(t, "Named of a deleted record", err, atoll.ErrNotFound)
	if name, found, err := s.Provider(t.Context(), r.ID); name != "" || found || err != nil {
		t.Errorf("Provider of a deleted record: %q, %v, %v", name, found, err)
	}
}

func checkRecordUnique(t *testing.T, open func(string) Store) {
	s := open("a")
	r := newRecord("scope", "web")
	insertRecord(t, s, r, "")
	twin := newRecord("scope", "db")
	twin.ID = r.ID
	_, err := s.Insert(t.Context(), twin, "secret", store.Limits{})
	wantKind(t, "Insert of a used id", err, atoll.ErrAlreadyExists)
	_, err = s.Insert(t.Context(), newRecord("scope", "web"), "secret", store.Limits{})
	wantKind(t, "Insert of a used name", err, atoll.ErrAlreadyExists)
	other := newRecord("scope", "web")
	other.Spec.Project = "other"
	for _, r := range []*store.Record{other, newRecord("scope", ""), newRecord("scope", "")} {
		insertRecord(t, s, r, "")
	}
	other.Spec.Project = atoll.DefaultProject
	wantKind(t, "Update to a used name", s.Update(t.Context(), other), atoll.ErrAlreadyExists)
	if err := s.Delete(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	insertRecord(t, s, newRecord("scope", "web"), "")
	_, err = s.Named(t.Context(), "scope", atoll.DefaultProject, "")
	wantKind(t, "Named of no name", err, atoll.ErrNotFound)
}

// checkNameAcrossScopes inserts a name into two scopes. A new sandbox cannot have the name of one in another scope;
// an existing sandbox can.
func checkNameAcrossScopes(t *testing.T, open func(string) Store) {
	s := open("a")
	first := newRecord("scope", "web")
	insertRecord(t, s, first, "")
	_, err := s.Insert(t.Context(), newRecord("elsewhere", "web"), "secret", store.Limits{})
	wantKind(t, "Insert of a name that another scope has", err, atoll.ErrAlreadyExists)
	named := func(scope string, want *store.Record) {
		t.Helper()
		r, err := s.Named(t.Context(), scope, want.Spec.Project, "web")
		if err != nil || r.ID != want.ID {
			t.Errorf("Named of %s: %+v, %v; want %s", scope, r, err, want.ID)
		}
	}
	named("elsewhere", first)
	there := newRecord("elsewhere", "web")
	there.State = store.Present
	insertRecord(t, s, there, "")
	named("scope", first)
	named("elsewhere", there)
	there.State = store.Removing
	if err := s.Update(t.Context(), there); err != nil {
		t.Errorf("Update of a record whose name another scope has: %v", err)
	}
	if err := s.Delete(t.Context(), first, false); err != nil {
		t.Fatal(err)
	}
	named("scope", there)
	_, err = s.Insert(t.Context(), newRecord("scope", "web"), "secret", store.Limits{})
	wantKind(t, "Insert of a name that only another scope has", err, atoll.ErrAlreadyExists)
}

func checkRecordChanged(t *testing.T, open func(string) Store) {
	a, b := open("a"), open("a")
	r := newRecord("scope", "")
	insertRecord(t, a, r, "")
	stale, err := b.Find(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.State = store.Present
	if err := a.Update(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"Update": b.Update(t.Context(), stale), "Delete": b.Delete(t.Context(), stale, true)} {
		wantKind(t, what+" of an old revision", err, atoll.ErrConflict)
		if !errors.Is(err, store.ErrChanged) {
			t.Errorf("%s: %v, want ErrChanged", what, err)
		}
	}
	if err := a.Delete(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Update of a deleted record", a.Update(t.Context(), r), atoll.ErrConflict)
	wantKind(t, "Delete of a deleted record", a.Delete(t.Context(), r, false), atoll.ErrConflict)
}

func checkRecordRaced(t *testing.T, open func(string) Store) {
	r := newRecord("scope", "")
	insertRecord(t, open("a"), r, "")
	var claims []func() error
	for range 4 {
		s := open("a")
		for range 4 {
			own := *r
			claims = append(claims, func() error { return s.Update(t.Context(), &own) })
		}
	}
	oneWins(t, claims, atoll.ErrConflict)
}

// checkConcurrentWrites also opens a new store many times at once.
func checkConcurrentWrites(t *testing.T, open func(string) Store) {
	var all sync.WaitGroup
	for i := range 6 {
		s := open("a")
		all.Go(func() {
			for n := range 20 {
				r := newRecord("scope", fmt.Sprintf("n-%d-%d", i, n))
				if _, err := s.Insert(t.Context(), r, "x", store.Limits{}); err != nil {
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

func checkNameRaced(t *testing.T, open func(string) Store) {
	var claims []func() error
	for i := range 8 {
		s := open("a")
		claims = append(claims, func() error {
			_, err := s.Insert(t.Context(), newRecord(fmt.Sprint("scope", i%2), "web"), "x", store.Limits{})
			return err
		})
	}
	oneWins(t, claims, atoll.ErrAlreadyExists)
}

// checkRecordLimit inserts more records than allowed, through two openings.
func checkRecordLimit(t *testing.T, open func(name string) Store) {
	const most, tries = 5, 20
	stores := []Store{open("a"), open("a")}
	var made, refused atomic.Int32
	var work sync.WaitGroup
	for i := range tries {
		work.Go(func() {
			_, err := stores[i%2].Insert(t.Context(), newRecord("scope", ""), "x", store.Limits{Most: most})
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
		t.Errorf("%d inserts succeeded, %d failed; want %d and %d", made.Load(), refused.Load(), most, tries-most)
	}
	all, err := stores[0].Records(t.Context())
	if err != nil || len(all) != most {
		t.Fatalf("%d records, %v; want %d", len(all), err, most)
	}
	if err := stores[1].Delete(t.Context(), all[0], true); err != nil {
		t.Fatal(err)
	}
	if _, err := stores[0].Insert(t.Context(), newRecord("scope", ""), "x", store.Limits{Most: most}); err != nil {
		t.Errorf("Insert below the limit: %v", err)
	}
}

func checkRecordOrder(t *testing.T, open func(string) Store) {
	s := open("a")
	if all, err := s.Records(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("Records of a new store: %v, %v", all, err)
	}
	var want []string
	for i := range 5 {
		r := newRecord("scope", "")
		r.Created = r.Created.Add(time.Duration(-i) * time.Minute)
		insertRecord(t, s, r, "")
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

func checkRecordsInState(t *testing.T, open func(string) Store) {
	s := open("a")
	if all, err := s.InState(t.Context(), "scope", store.Present); err != nil || len(all) != 0 {
		t.Errorf("InState of a missing store: %v, %v", all, err)
	}
	var want []string
	for i := range 3 {
		r := newRecord("scope", "")
		r.Created, r.State, r.Reason = r.Created.Add(time.Duration(-i)*time.Minute), store.Rebuilding, "no image"
		insertRecord(t, s, r, "")
		want = slices.Insert(want, 0, r.ID)
	}
	elsewhere := newRecord("elsewhere", "")
	elsewhere.State = store.Rebuilding
	insertRecord(t, s, elsewhere, "")
	insertRecord(t, s, newRecord("scope", ""), "")
	all, err := s.InState(t.Context(), "scope", store.Rebuilding)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range all {
		got = append(got, r.ID)
		if r.Reason != "no image" {
			t.Errorf("the reason is %q", r.Reason)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("InState: %q, want %q", got, want)
	}
}

func checkRecordForgotten(t *testing.T, open func(string) Store) {
	s := open("a")
	r, other := newRecord("scope", "web"), newRecord("scope", "")
	insertRecord(t, s, r, "secret")
	insertRecord(t, s, other, "secret")
	stale := *r
	r.State = store.Present
	if err := s.Update(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Forget of an old revision", s.Forget(t.Context(), &stale), atoll.ErrConflict)
	remembers := func(when, id string, want bool) {
		t.Helper()
		if got, err := open("a").Forgotten(t.Context(), id); got != want || err != nil {
			t.Errorf("%s: Forgotten: %v, %v; want %v", when, got, err, want)
		}
	}
	remembers("before Forget", r.ID, false)
	if err := s.Forget(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), other, false); err != nil {
		t.Fatal(err)
	}
	_, err := s.Find(t.Context(), r.ID)
	wantKind(t, "Find of a forgotten record", err, atoll.ErrNotFound)
	remembers("after Forget", r.ID, true)
	remembers("after Delete", other.ID, false)
	if all, err := s.Abandoned(t.Context(), "scope"); !slices.Equal(all, []string{other.ID}) || err != nil {
		t.Errorf("Abandoned: %q, %v; want %s", all, err, other.ID)
	}
	if kept := insertRecord(t, s, newRecord("scope", "web"), "x"); kept != "x" { // its name is free
		t.Errorf("Insert returned the secret %q", kept)
	}
	r.Spec.Name = ""
	if kept := insertRecord(t, s, r, "another"); kept != "secret" {
		t.Errorf("Insert returned the secret %q", kept)
	}
	remembers("after another Insert", r.ID, false)
}
