package authz

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// SecretPrefix begins each secret of a key, so that scanners find one that was
// published: `atoll_key_[0-9a-f]{16}_[0-9a-f]{64}`.
const SecretPrefix = "atoll_key_"

// A secret has the id of its key, by which that is found, and 256 random bits, which
// is why a plain hash is enough.
var secretForm = regexp.MustCompile(`^` + SecretPrefix + `([0-9a-f]{16})_[0-9a-f]{64}$`)

// How long a Ring goes by what it has read of a key.
const (
	// Fresh is how long a key that was revoked or rotated elsewhere may still be
	// good: its use is looked up anew after that.
	Fresh = 5 * time.Second
	// Stale is how long it may be where the store does not answer meanwhile. Then
	// keys are ErrUnavailable.
	Stale = 30 * time.Second
)

// usedEvery is how exactly it is known when a key was used.
const usedEvery = 10 * time.Minute

// RingOptions configure a Ring. The zero value is fine.
type RingOptions struct {
	// Taken are the accounts that come by other means than keys. No key gets one of
	// them, or is good that has one, unless it may do the same.
	Taken []auth.Account
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger
	// Changed is told of each change of a key, and what came of it.
	Changed func(ctx context.Context, op string, key auth.Key, err error)

	now func() time.Time // for tests
}

// A Ring keeps API keys. All methods may be called at once.
type Ring struct {
	store store.Keys
	opts  RingOptions
	log   *slog.Logger

	mu      sync.Mutex
	known   map[string]*held     // by id
	unknown map[string]time.Time // ids of no key, and when that was read
	closed  bool
	work    sync.WaitGroup // uses that are being written down
}

// mostUnknown is how many ids of no key are remembered.
const mostUnknown = 1000

// A held key is one as it was read.
type held struct {
	store.Key
	at   time.Time // when
	used time.Time // when its use was last written down, by us
}

// NewRing returns the ring of the keys in s, which closes with it.
func NewRing(s store.Keys, opts RingOptions) *Ring {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Changed == nil {
		opts.Changed = func(context.Context, string, auth.Key, error) {}
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	return &Ring{store: s, opts: opts, log: opts.Log, known: map[string]*held{}, unknown: map[string]time.Time{}}
}

// Close waits for what is being written, and closes the store.
func (r *Ring) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.work.Wait()
	return r.store.Close()
}

// errUnknown is the answer to every secret that is not good: one that was made up,
// or of a key that was revoked or has expired.
var errUnknown = atoll.Errorf("", "", atoll.ErrDenied, "the token is not known here")

// Verify is whose secret it is. It goes by what it has read of a key for Fresh.
// Kinds: ErrDenied (nobody's, or its account is by now that of others who may do
// something else), ErrUnavailable (the store does not answer).
func (r *Ring) Verify(ctx context.Context, secret string) (auth.Account, error) {
	m := secretForm.FindStringSubmatch(secret)
	if m == nil {
		return auth.Account{}, errUnknown
	}
	k, err := r.find(ctx, m[1])
	if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
		return auth.Account{}, atoll.E("", "", atoll.ErrUnavailable, err)
	}
	now := r.opts.now()
	hash := hashOf(secret)
	good := same(hash, k.Hash)
	old := same(hash, k.OldHash) & after(k.OldUntil, now)
	if err != nil || good|old != 1 || !k.Valid(now) {
		return auth.Account{}, errUnknown
	}
	a := auth.Account{Name: k.Account, Role: k.Role, Projects: k.Projects, Key: k.ID, KeyName: k.Name}
	if err := r.own(a); err != nil { // others were configured since the key was made
		return auth.Account{}, atoll.E("", "", atoll.ErrDenied, err)
	}
	r.noteUse(k.ID, now)
	return a, nil
}

// own says what is wrong with a key's account: conversations are shared by all who have one.
func (r *Ring) own(a auth.Account) error {
	for _, other := range r.opts.Taken {
		if other.WithDefaults().Name == a.Name && other.Who() != a.Who() {
			return fmt.Errorf("the account %s is that of others who may do something else, and would share conversations with it: name another account", a.Name)
		}
	}
	return nil
}

// same compares hashes in constant time; nothing is the same as none.
func same(hash, want string) int {
	if want == "" {
		want = noHash // takes as long
	}
	return subtle.ConstantTimeCompare([]byte(hash), []byte(want))
}

// noHash is as long as a hash, and none.
const noHash = "................................................................"

// after is 1 if until is after now.
func after(until, now time.Time) int {
	if until.After(now) {
		return 1
	}
	return 0
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// find reads a key, or knows it, or that there is none.
func (r *Ring) find(ctx context.Context, id string) (store.Key, error) {
	now := r.opts.now()
	r.mu.Lock()
	h, none := r.known[id], r.unknown[id]
	r.mu.Unlock()
	switch {
	case h != nil && now.Sub(h.at) < Fresh:
		return h.Key, nil
	case now.Sub(none) < Fresh: // an id is drawn with its key, so nobody has asked for it before
		return store.Key{}, atoll.E("find key", id, atoll.ErrNotExist, nil)
	}
	k, err := r.store.FindKey(ctx, id)
	switch {
	case atoll.KindOf(err) == atoll.ErrNotExist:
		r.miss(id, now)
		return store.Key{}, err
	case err != nil && h != nil && now.Sub(h.at) < Stale && ctx.Err() == nil:
		r.log.Warn("keys: the store does not answer, going by what it said last", "key", id, "err", err)
		return h.Key, nil
	case err != nil:
		return store.Key{}, err
	}
	r.keep(k, now)
	return *k, nil
}

// miss remembers that no key has an id. Where somebody makes up many, others are forgotten.
func (r *Ring) miss(id string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.unknown) >= mostUnknown {
		clear(r.unknown)
	}
	r.unknown[id] = at
}

// keep remembers a key as it was at a time.
func (r *Ring) keep(k *store.Key, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := k.Used
	if h := r.known[k.ID]; h != nil {
		if h.at.After(at) { // somebody has read it since
			return
		}
		if h.used.After(used) {
			used = h.used
		}
	}
	r.known[k.ID] = &held{Key: *k, at: at, used: used}
}

// noteUse writes down that a key is used, if that was not known lately. Nobody waits
// for it.
func (r *Ring) noteUse(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.known[id]
	if r.closed || h == nil || now.Sub(h.used) < usedEvery {
		return
	}
	h.used = now
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.store.UseKey(ctx, id, now); err != nil {
			r.log.Warn("keys: that one is used is not written down", "key", id, "err", err)
		}
	})
}

// newSecret draws one for a key.
func newSecret(id string) string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	return SecretPrefix + id + "_" + hex.EncodeToString(raw[:])
}

// CreateKey makes a key. Kinds: ErrInvalid, ErrAlreadyExists (of the name),
// ErrConflict (the account is that of others who may do something else), and those
// of the store.
func (r *Ring) CreateKey(ctx context.Context, spec auth.KeySpec) (made auth.NewKey, err error) {
	defer func() {
		k := made.Key
		k.Name = cmp.Or(k.Name, spec.Name)
		r.opts.Changed(ctx, "create key", k, err)
	}()
	spec, err = spec.WithDefaults()
	if err != nil {
		return made, err
	}
	if err := r.own(auth.Account{Name: spec.Account, Role: spec.Role, Projects: spec.Projects}); err != nil {
		return made, atoll.E("create key", spec.Name, atoll.ErrConflict, err)
	}
	var id [8]byte
	_, _ = rand.Read(id[:])
	now := r.opts.now().Truncate(time.Millisecond)
	made.Key = auth.Key{ID: hex.EncodeToString(id[:]), Name: spec.Name, Account: spec.Account, Role: spec.Role, Projects: spec.Projects, Created: now}
	if spec.TTL > 0 {
		made.Expires = now.Add(time.Duration(spec.TTL))
	}
	secret := newSecret(made.ID)
	if err = r.store.InsertKey(ctx, &store.Key{Key: made.Key, Hash: hashOf(secret)}); err != nil {
		return auth.NewKey{}, err
	}
	made.Secret = secret
	return made, nil
}

// Keys lists all that there are, those that were revoked too, oldest first.
func (r *Ring) Keys(ctx context.Context) ([]auth.Key, error) {
	all, err := r.store.Keys(ctx)
	if err != nil {
		return nil, err
	}
	keys := make([]auth.Key, len(all))
	for i, k := range all {
		keys[i] = k.Key
	}
	return keys, nil
}

// lookUp finds the key that is meant by its id, or by the name that it has while it is
// not revoked.
func (r *Ring) lookUp(ctx context.Context, op, ref string) (auth.Key, error) {
	all, err := r.store.Keys(ctx)
	if err != nil {
		return auth.Key{}, err
	}
	i := slices.IndexFunc(all, func(k *store.Key) bool { return k.ID == ref && k.Revoked.IsZero() })
	if i < 0 {
		i = slices.IndexFunc(all, func(k *store.Key) bool { return k.Name == ref && k.Revoked.IsZero() })
	}
	if i < 0 {
		return auth.Key{}, atoll.Errorf(op, ref, atoll.ErrNotExist, "there is no such key, or it is revoked")
	}
	return all[i].Key, nil
}

// RotateKey gives a key, by its id or name, another secret. The one that it has is
// good for grace from now, 0 for no longer, a negative one for DefaultRotateGrace;
// one before that no longer. Servers that share the store go by it within Fresh.
// Kinds: ErrNotExist, ErrConflict (it has expired), and those of the store.
func (r *Ring) RotateKey(ctx context.Context, ref string, grace atoll.Duration) (made auth.NewKey, err error) {
	const op = "rotate key"
	defer func() {
		k := made.Key
		k.Name = cmp.Or(k.Name, ref)
		r.opts.Changed(ctx, op, k, err)
	}()
	if grace < 0 {
		grace = auth.DefaultRotateGrace
	}
	k, err := r.lookUp(ctx, op, ref)
	if err != nil {
		return made, err
	}
	now := r.opts.now()
	if !k.Valid(now) {
		return made, atoll.Errorf(op, ref, atoll.ErrConflict, "it has expired: remove it, and make another one")
	}
	secret := newSecret(k.ID)
	changed, err := r.store.RotateKey(ctx, k.ID, hashOf(secret), now, now.Add(time.Duration(grace)))
	if err != nil {
		return made, err
	}
	r.keep(changed, r.opts.now())
	return auth.NewKey{Key: changed.Key, Secret: secret}, nil
}

// RevokeKey ends a key, by its id or name, for good. Servers that share the store go
// by it within Fresh. Kinds: ErrNotExist, and those of the store.
func (r *Ring) RevokeKey(ctx context.Context, ref string) (err error) {
	const op = "remove key"
	k := auth.Key{Name: ref}
	defer func() { r.opts.Changed(ctx, op, k, err) }()
	found, err := r.lookUp(ctx, op, ref)
	if err != nil {
		return err
	}
	k = found
	now := r.opts.now()
	if err := r.store.RevokeKey(ctx, k.ID, now); err != nil {
		return err
	}
	k.Revoked = now
	r.mu.Lock()
	delete(r.known, k.ID)
	r.mu.Unlock()
	return nil
}
