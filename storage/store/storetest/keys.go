package storetest

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// RunKeys checks implementations of store.Keys. See Run for the meaning of open.
func RunKeys(t *testing.T, open func(t *testing.T, name string) store.Keys) {
	for _, tt := range []struct {
		name  string
		check func(t *testing.T, open func(name string) store.Keys)
	}{
		{"a key is read back unchanged", checkKeyRoundTrip},
		{"of keys that are not revoked, one has a name", checkKeyNames},
		{"of concurrent inserts of keys with one name, one succeeds", checkKeyNameRaced},
		{"all keys of an account have the same role and projects", checkKeyAccounts},
		{"after a rotation, the previous secret remains valid for a while", checkKeyRotated},
		{"concurrent rotations of a key each return their own result", checkKeyRotationRaced},
		{"a revoked key remains revoked", checkKeyRevoked},
		{"the time of the last use never goes back", checkKeyUsed},
		{"a missing store has no keys", checkNoKeys},
		{"a closed store refuses all calls", checkKeysClosed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.check(t, func(name string) store.Keys {
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

// apiKey returns a key for projects, or an administrator's key if there are none.
func apiKey(name string, projects ...string) *store.Key {
	k := &store.Key{Key: auth.Key{
		ID: atoll.NewID()[:16], Name: name, Account: auth.DefaultAccount, Role: auth.RoleAdmin, Projects: projects, Created: storedNow().Truncate(time.Millisecond),
	}, Hash: "hash of " + name}
	if len(projects) > 0 {
		k.Role, k.Account = auth.RoleProject, "of_"+name
	}
	return k
}

func insertKey(t *testing.T, s store.Keys, k *store.Key) *store.Key {
	t.Helper()
	if err := s.InsertKey(t.Context(), k); err != nil {
		t.Fatalf("InsertKey: %v", err)
	}
	return k
}

// wantKey checks that the stored key equals want.
func wantKey(t *testing.T, what string, s store.Keys, want *store.Key) {
	t.Helper()
	got, err := s.FindKey(t.Context(), want.ID)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	wantSameKey(t, what, got, want)
}

func wantSameKey(t *testing.T, what string, got, want *store.Key) {
	t.Helper()
	plain := func(k store.Key) (store.Key, []int64) {
		var at []int64
		for _, when := range []*time.Time{&k.Created, &k.Rotated, &k.OldUntil, &k.Expires, &k.Revoked, &k.Used} {
			ms := int64(0)
			if !when.IsZero() {
				ms = when.UnixMilli()
			}
			at, *when = append(at, ms), time.Time{}
		}
		return k, at
	}
	g, gAt := plain(*got)
	w, wAt := plain(*want)
	if !reflect.DeepEqual(g, w) || !slices.Equal(gAt, wAt) {
		t.Errorf("%s:\n%+v, want\n%+v", what, got, want)
	}
}

func checkKeyRoundTrip(t *testing.T, open func(string) store.Keys) {
	a, b := open("a"), open("a")
	first := insertKey(t, a, apiKey("first"))
	second := apiKey("second", "web", "api")
	second.Created = first.Created.Add(time.Second)
	second.Expires, second.Used = second.Created.Add(time.Hour), second.Created.Add(time.Minute)
	second.OldHash, second.OldUntil, second.Rotated = "an old hash", second.Created.Add(time.Second), second.Created.Add(time.Millisecond)
	insertKey(t, b, second)
	wantKey(t, "an administrator's key", b, first)
	wantKey(t, "a project's key", a, second)
	all, err := a.Keys(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("Keys: %v, %v", all, err)
	}
	wantSameKey(t, "the first of the list", all[0], first)
	wantSameKey(t, "the second of the list", all[1], second)
	_, err = a.FindKey(t.Context(), "0123456789abcdef")
	wantKind(t, "FindKey of a missing key", err, atoll.ErrNotExist)
}

func checkKeyNames(t *testing.T, open func(string) store.Keys) {
	s := open("a")
	old := insertKey(t, s, apiKey("ci"))
	wantKind(t, "InsertKey with a used name", s.InsertKey(t.Context(), apiKey("ci")), atoll.ErrAlreadyExists)
	if err := s.RevokeKey(t.Context(), old.ID, storedNow()); err != nil {
		t.Fatal(err)
	}
	insertKey(t, s, apiKey("ci"))
	twin := apiKey("other")
	twin.ID = old.ID
	wantKind(t, "InsertKey with a used id", s.InsertKey(t.Context(), twin), atoll.ErrAlreadyExists)
}

func checkKeyNameRaced(t *testing.T, open func(string) store.Keys) {
	var claims []func() error
	for range 8 {
		s := open("a")
		claims = append(claims, func() error { return s.InsertKey(t.Context(), apiKey("ci")) })
	}
	oneWins(t, claims, atoll.ErrAlreadyExists)
}

func checkKeyAccounts(t *testing.T, open func(string) store.Keys) {
	s := open("a")
	first := insertKey(t, s, apiKey("first", "web"))
	for what, change := range map[string]func(k *store.Key){
		"other projects": func(k *store.Key) { k.Projects = []string{"api"} },
		"more projects":  func(k *store.Key) { k.Projects = []string{"web", "api"} },
		"another role":   func(k *store.Key) { k.Role, k.Projects = auth.RoleAdmin, nil },
	} {
		k := apiKey("next", "web")
		k.Account = first.Account
		change(k)
		wantKind(t, what, s.InsertKey(t.Context(), k), atoll.ErrConflict)
	}
	if err := s.RevokeKey(t.Context(), first.ID, storedNow()); err != nil {
		t.Fatal(err)
	}
	k := apiKey("next", "api")
	k.Account = first.Account
	wantKind(t, "other projects than those of a revoked key", s.InsertKey(t.Context(), k), atoll.ErrConflict)
	k.Projects = first.Projects
	insertKey(t, s, k)
}

func checkKeyRotated(t *testing.T, open func(string) store.Keys) {
	a, b := open("a"), open("a")
	k := insertKey(t, a, apiKey("ci"))
	at := storedNow().Truncate(time.Millisecond)
	for i, hash := range []string{"two", "three"} {
		k.OldHash, k.Hash, k.Rotated, k.OldUntil = k.Hash, hash, at.Add(time.Duration(i)*time.Second), at.Add(time.Hour)
		got, err := b.RotateKey(t.Context(), k.ID, hash, k.Rotated, k.OldUntil)
		if err != nil {
			t.Fatal(err)
		}
		wantSameKey(t, "RotateKey", got, k)
		wantKey(t, "FindKey in another program", a, k)
	}
	_, err := a.RotateKey(t.Context(), "0123456789abcdef", "x", at, at)
	wantKind(t, "RotateKey of a missing key", err, atoll.ErrNotExist)
}

func checkKeyRotationRaced(t *testing.T, open func(string) store.Keys) {
	k := insertKey(t, open("a"), apiKey("ci"))
	const many = 8
	results := make(chan *store.Key, many)
	for i := range many {
		s := open("a")
		go func() {
			got, err := s.RotateKey(t.Context(), k.ID, string(rune('a'+i)), storedNow(), storedNow().Add(time.Hour))
			if err != nil {
				t.Error(err)
				got = &store.Key{}
			}
			results <- got
		}()
	}
	before := map[string]bool{}
	for range many {
		got := <-results
		if got.OldHash == got.Hash || before[got.OldHash] {
			t.Errorf("%q replaced %q, as another rotation did", got.Hash, got.OldHash)
		}
		before[got.OldHash] = true
	}
}

func checkKeyRevoked(t *testing.T, open func(string) store.Keys) {
	a, b := open("a"), open("a")
	k := insertKey(t, a, apiKey("ci"))
	k.Revoked = storedNow().Truncate(time.Millisecond)
	if err := a.RevokeKey(t.Context(), k.ID, k.Revoked); err != nil {
		t.Fatal(err)
	}
	wantKey(t, "a revoked key", b, k)
	wantKind(t, "RevokeKey again", b.RevokeKey(t.Context(), k.ID, storedNow()), atoll.ErrNotExist)
	_, err := b.RotateKey(t.Context(), k.ID, "x", storedNow(), storedNow())
	wantKind(t, "RotateKey of a revoked key", err, atoll.ErrNotExist)
	wantKey(t, "the key afterwards", a, k)
	wantKind(t, "RevokeKey of a missing key", a.RevokeKey(t.Context(), "0123456789abcdef", storedNow()), atoll.ErrNotExist)
}

func checkKeyUsed(t *testing.T, open func(string) store.Keys) {
	s := open("a")
	k := insertKey(t, s, apiKey("ci"))
	k.Used = storedNow().Truncate(time.Millisecond)
	for _, at := range []time.Time{k.Used, k.Used.Add(-time.Hour)} {
		if err := s.UseKey(t.Context(), k.ID, at); err != nil {
			t.Fatal(err)
		}
	}
	wantKey(t, "a used key", s, k)
	if err := s.UseKey(t.Context(), "0123456789abcdef", k.Used); err != nil {
		t.Errorf("UseKey of a missing key: %v", err)
	}
}

func checkNoKeys(t *testing.T, open func(string) store.Keys) {
	s := open("a")
	if all, err := s.Keys(t.Context()); len(all) != 0 || err != nil {
		t.Errorf("Keys: %v, %v", all, err)
	}
	_, err := s.FindKey(t.Context(), "0123456789abcdef")
	wantKind(t, "FindKey", err, atoll.ErrNotExist)
}

func checkKeysClosed(t *testing.T, open func(string) store.Keys) {
	s := open("a")
	k := insertKey(t, s, apiKey("ci"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, find := s.FindKey(t.Context(), k.ID)
	_, list := s.Keys(t.Context())
	_, rotate := s.RotateKey(t.Context(), k.ID, "x", storedNow(), storedNow())
	for what, err := range map[string]error{
		"FindKey": find, "Keys": list, "RotateKey": rotate, "InsertKey": s.InsertKey(t.Context(), apiKey("x")),
		"RevokeKey": s.RevokeKey(t.Context(), k.ID, storedNow()), "UseKey": s.UseKey(t.Context(), k.ID, storedNow()),
	} {
		if !errors.Is(err, atoll.ErrUnavailable) {
			t.Errorf("%s: %v, want %q", what, err, atoll.ErrUnavailable)
		}
	}
}
