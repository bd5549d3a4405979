package authz

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// A clock is a clock that tests set.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// flaky is a store that fails on demand and counts reads of keys.
type flaky struct {
	*sqlite.Store
	mu    sync.Mutex
	fails error
	reads int
	uses  int
}

func (f *flaky) FindKey(ctx context.Context, id string) (*store.Key, error) {
	f.mu.Lock()
	f.reads++
	err := f.fails
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return f.Store.FindKey(ctx, id)
}

func (f *flaky) UseKey(ctx context.Context, id string, now time.Time) error {
	f.mu.Lock()
	f.uses++
	f.mu.Unlock()
	return f.Store.UseKey(ctx, id, now)
}

func (f *flaky) setError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = err
}

// newRings returns the rings of n servers that share a store.
func newRings(t *testing.T, n int) ([]*Ring, *clock, []*flaky) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "atoll.db")
	c := &clock{at: time.Now()}
	var all []*Ring
	var stores []*flaky
	for range n {
		s := &flaky{Store: sqlite.New(path)}
		r := NewRing(s, RingOptions{now: c.now, Taken: []auth.Account{{}, {Name: "ali", Role: "user"}}})
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		all, stores = append(all, r), append(stores, s)
	}
	return all, c, stores
}

func newKey(t *testing.T, r *Ring, spec auth.KeySpec) auth.NewKey {
	t.Helper()
	made, err := r.CreateKey(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func wantAccount(t *testing.T, what string, r *Ring, secret string) auth.Account {
	t.Helper()
	a, err := r.Verify(t.Context(), secret)
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return a
}

func wantDenied(t *testing.T, what string, r *Ring, secret string) {
	t.Helper()
	_, err := r.Verify(t.Context(), secret)
	if atoll.KindOf(err) != atoll.ErrDenied || err.Error() != errUnknown.Error() {
		t.Errorf("%s: %v, want %v", what, err, errUnknown)
	}
}

func TestKey(t *testing.T) {
	all, _, _ := newRings(t, 2)
	made := newKey(t, all[0], auth.KeySpec{Name: "ci", Projects: []string{"web", "api", "web"}})
	if !secretPattern().MatchString(made.Secret) || made.Account != "project_api_web" {
		t.Errorf("the key is %+v", made)
	}
	a := wantAccount(t, "on another server", all[1], made.Secret)
	if !a.IsRestricted() || !a.CanUse("web") || !a.CanUse("api") || a.CanUse("default") || a.Key != made.ID || a.KeyName != "ci" || a.ProjectOr("default") != "web" {
		t.Errorf("account: %+v", a)
	}
	admin := newKey(t, all[1], auth.KeySpec{Name: "ops", Role: auth.RoleAdmin})
	if a := wantAccount(t, "an admin's", all[0], admin.Secret); a.IsRestricted() || a.Name != auth.DefaultAccount {
		t.Errorf("an admin is %+v", a)
	}
	last := made.Secret[len(made.Secret)-1]
	other := strings.TrimSuffix(made.Secret, string(last)) + string("0123456789abcdef"[(strings.IndexByte("0123456789abcdef", last)+1)%16])
	for what, secret := range map[string]string{
		"nothing": "", "a word": "sesame", "only the id": SecretPrefix + made.ID, "another secret": other, "in capitals": strings.ToUpper(made.Secret),
		"no such key": newSecret("0123456789abcdef"), "of another key": strings.Replace(made.Secret, made.ID, admin.ID, 1), "with more": made.Secret + "0", "in lines": made.Secret + "\n",
	} {
		wantDenied(t, what, all[0], secret)
	}
	keys, err := all[0].Keys(t.Context())
	if err != nil || len(keys) != 2 {
		t.Errorf("Keys: %v, %v", keys, err)
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	all, _, _ := newRings(t, 1)
	newKey(t, all[0], auth.KeySpec{Name: "ci", Projects: []string{"web"}, Account: "team"})
	for what, tt := range map[string]struct {
		spec auth.KeySpec
		want atoll.Kind
	}{
		"no name":                {auth.KeySpec{Projects: []string{"web"}}, atoll.ErrInvalid},
		"no project":             {auth.KeySpec{Name: "x"}, atoll.ErrInvalid},
		"an admin's project":     {auth.KeySpec{Name: "x", Role: auth.RoleAdmin, Projects: []string{"web"}}, atoll.ErrInvalid},
		"an unknown role":        {auth.KeySpec{Name: "x", Role: "user", Projects: []string{"web"}}, atoll.ErrInvalid},
		"no project's name":      {auth.KeySpec{Name: "x", Projects: []string{"../web"}}, atoll.ErrInvalid},
		"a negative time":        {auth.KeySpec{Name: "x", Projects: []string{"web"}, TTL: -1}, atoll.ErrInvalid},
		"a name that is taken":   {auth.KeySpec{Name: "ci", Projects: []string{"web"}}, atoll.ErrAlreadyExists},
		"another's account":      {auth.KeySpec{Name: "x", Projects: []string{"api"}, Account: "team"}, atoll.ErrConflict},
		"the default account":    {auth.KeySpec{Name: "x", Projects: []string{"web"}, Account: auth.DefaultAccount}, atoll.ErrConflict},
		"a configured account":   {auth.KeySpec{Name: "x", Projects: []string{"web"}, Account: "ali"}, atoll.ErrConflict},
		"an account of an admin": {auth.KeySpec{Name: "x", Role: auth.RoleAdmin, Account: "team"}, atoll.ErrConflict},
	} {
		if _, err := all[0].CreateKey(t.Context(), tt.spec); atoll.KindOf(err) != tt.want {
			t.Errorf("%s: %v, want %q", what, err, tt.want)
		}
	}
}

// A key keeps its account until the configuration uses the account's name for other permissions.
func TestKeyWhoseAccountIsTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	with := func(taken ...auth.Account) *Ring {
		r := NewRing(sqlite.New(path), RingOptions{Taken: append(taken, auth.Account{})})
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return r
	}
	made := newKey(t, with(), auth.KeySpec{Name: "ci", Projects: []string{"web"}, Account: "team"})
	for what, tt := range map[string]struct {
		taken auth.Account
		fine  bool
	}{
		"another one":           {auth.Account{Name: "ali", Role: auth.RoleProject, Projects: []string{"api"}}, true},
		"one that may the same": {auth.Account{Name: "team", Role: auth.RoleProject, Projects: []string{"web"}}, true},
		"an admin":              {auth.Account{Name: "team"}, false},
		"of another project":    {auth.Account{Name: "team", Role: auth.RoleProject, Projects: []string{"api"}}, false},
	} {
		_, err := with(tt.taken).Verify(t.Context(), made.Secret)
		if tt.fine && err != nil || !tt.fine && (atoll.KindOf(err) != atoll.ErrDenied || !strings.Contains(err.Error(), "team")) {
			t.Errorf("%s is configured: %v, want it to be fine: %v", what, err, tt.fine)
		}
	}
}

// A change of a key applies on this server at once, and on others after Fresh.
func TestKeysChange(t *testing.T) {
	all, c, _ := newRings(t, 2)
	here, there := all[0], all[1]
	first := newKey(t, here, auth.KeySpec{Name: "ci", Projects: []string{"web"}})
	wantAccount(t, "there", there, first.Secret)
	second, err := here.RotateKey(t.Context(), "ci", -1)
	if err != nil {
		t.Fatal(err)
	}
	wantAccount(t, "the new one, here", here, second.Secret)
	wantAccount(t, "the old one, here", here, first.Secret)
	c.advance(Fresh)
	wantAccount(t, "the new one, there", there, second.Secret)
	wantAccount(t, "the old one, there", there, first.Secret)
	c.advance(time.Duration(auth.DefaultRotateGrace) - Fresh)
	wantDenied(t, "the old one, after its grace", here, first.Secret)
	wantDenied(t, "the old one, after its grace, there", there, first.Secret)
	third, err := there.RotateKey(t.Context(), second.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	wantDenied(t, "the old one, without a grace", there, second.Secret)
	c.advance(Fresh)
	wantDenied(t, "the old one, without a grace, here", here, second.Secret)
	wantAccount(t, "the third", here, third.Secret)
	if err := there.RevokeKey(t.Context(), "ci"); err != nil {
		t.Fatal(err)
	}
	wantDenied(t, "one that is revoked", there, third.Secret)
	c.advance(Fresh)
	wantDenied(t, "one that is revoked, here", here, third.Secret)
	if _, err := here.RotateKey(t.Context(), "ci", 0); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("RotateKey of one that is revoked: %v", err)
	}
	if err := here.RevokeKey(t.Context(), "ci"); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("RevokeKey of one that is revoked: %v", err)
	}
	short := newKey(t, here, auth.KeySpec{Name: "ci", Projects: []string{"web"}, TTL: atoll.Duration(time.Minute)})
	wantAccount(t, "one that expires", here, short.Secret)
	c.advance(time.Minute)
	wantDenied(t, "one that has expired", here, short.Secret)
	if _, err := here.RotateKey(t.Context(), "ci", 0); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("RotateKey of one that has expired: %v", err)
	}
}

// Without its store, a Ring uses cached keys until Stale, and then fails with ErrUnavailable.
func TestKeysWithoutTheirStore(t *testing.T) {
	all, c, stores := newRings(t, 1)
	r := all[0]
	made := newKey(t, r, auth.KeySpec{Name: "ci", Projects: []string{"web"}})
	wantAccount(t, "at first", r, made.Secret)
	stores[0].setError(atoll.Errorf("find key", "", atoll.ErrUnavailable, "no answer"))
	c.advance(Fresh)
	wantAccount(t, "for a while", r, made.Secret)
	c.advance(Stale - Fresh)
	for what, secret := range map[string]string{"after that": made.Secret, "one that nobody knows": newSecret("0123456789abcdef")} {
		if _, err := r.Verify(t.Context(), secret); !errors.Is(err, atoll.ErrUnavailable) {
			t.Errorf("%s: %v, want %q", what, err, atoll.ErrUnavailable)
		}
	}
	stores[0].setError(nil)
	wantAccount(t, "again", r, made.Secret)
}

// A request with a cached key neither reads nor writes the store.
func TestKeysAreRemembered(t *testing.T) {
	all, c, stores := newRings(t, 1)
	r := all[0]
	made := newKey(t, r, auth.KeySpec{Name: "ci", Projects: []string{"web"}})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				wantAccount(t, "at once", r, made.Secret)
			}
		})
	}
	group.Wait()
	reads := stores[0].reads
	if reads > 8 {
		t.Errorf("the store was read %d times", reads)
	}
	for range 100 {
		wantDenied(t, "no such key", r, newSecret("0123456789abcdef"))
	}
	if n := stores[0].reads - reads; n != 1 {
		t.Errorf("the store was read %d times for an unknown key", n)
	}
	c.advance(Fresh)
	for i := range 2*maxUnknown + 1 {
		wantDenied(t, "made up", r, newSecret(fmt.Sprintf("%016x", i)))
	}
	if n := len(r.unknown); n > maxUnknown {
		t.Errorf("%d unknown ids are remembered", n)
	}
	c.advance(usageInterval)
	wantAccount(t, "later", r, made.Secret)
	r.work.Wait()
	if stores[0].uses != 2 {
		t.Errorf("its use was written %d times, want 2", stores[0].uses)
	}
	keys, err := r.Keys(t.Context())
	if err != nil || !keys[0].Used.Equal(c.now().Truncate(time.Millisecond)) {
		t.Errorf("it was used %v, %v, want %v", keys[0].Used, err, c.now())
	}
}

// Things that a key has made count as the key's account, as long as the key is valid.
func TestAccountOfKey(t *testing.T) {
	rings, clock, stores := newRings(t, 1)
	made, err := rings[0].CreateKey(t.Context(), auth.KeySpec{Name: "k", Projects: []string{"web"}, TTL: atoll.Duration(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := rings[0].Account(t.Context(), made.ID)
	if err != nil || a.Key != made.ID || a.Role != auth.RoleProject || len(a.Projects) != 1 || a.Projects[0] != "web" {
		t.Errorf("Account = %+v, %v", a, err)
	}
	if stores[0].uses > 0 {
		t.Error("it counts as use of the key")
	}
	if _, err := rings[0].Account(t.Context(), "0123456789abcdef"); atoll.KindOf(err) != atoll.ErrDenied {
		t.Errorf("another id: %v", err)
	}
	clock.advance(time.Hour)
	if _, err := rings[0].Account(t.Context(), made.ID); atoll.KindOf(err) != atoll.ErrDenied {
		t.Errorf("an expired key: %v", err)
	}
	made, err = rings[0].CreateKey(t.Context(), auth.KeySpec{Name: "k2", Projects: []string{"web"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := rings[0].RevokeKey(t.Context(), "k2"); err != nil {
		t.Fatal(err)
	}
	clock.advance(Fresh)
	if _, err := rings[0].Account(t.Context(), made.ID); atoll.KindOf(err) != atoll.ErrDenied {
		t.Errorf("a revoked key: %v", err)
	}
	stores[0].setError(atoll.E("", "", atoll.ErrUnavailable, nil))
	clock.advance(Stale)
	if _, err := rings[0].Account(t.Context(), made.ID); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("without a store: %v", err)
	}
}
