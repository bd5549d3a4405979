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

// SecretPrefix is the prefix of all secrets of keys, by which scanners recognize a published
// secret: `atoll_key_[0-9a-f]{16}_[0-9a-f]{64}`.
const SecretPrefix = "atoll_key_"

// secretPattern matches a secret: the id of the key, and 256 random bits. With that much
// randomness, a plain hash is enough.
var secretPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^` + SecretPrefix + `([0-9a-f]{16})_[0-9a-f]{64}$`) })

// How long a Ring uses its copy of a key.
const (
	// Fresh is the time for which a Ring uses a key without reading it again. A key that another
	// server revoked or rotated may remain valid for this long.
	Fresh = 5 * time.Second
	// Stale is the time for which a Ring uses a key that it fails to read again. After that,
	// Verify fails with ErrUnavailable.
	Stale = 30 * time.Second
)

// usageInterval is the precision of Key.Used.
const usageInterval = 10 * time.Minute

// RingOptions configure a Ring. The zero value has no other accounts and discards logs.
type RingOptions struct {
	// Taken are the accounts of callers that do not use keys. A key cannot have the name of one
	// of these accounts unless it has the same permissions.
	Taken []auth.Account
	// Log receives errors that no method can return; nil discards them.
	Log *slog.Logger
	// Changed is called after each change of a key, with its result.
	Changed func(ctx context.Context, op string, key auth.Key, err error)

	now func() time.Time // for tests
}

// A Ring manages API keys. All methods are safe for concurrent use.
type Ring struct {
	store store.Keys
	opts  RingOptions
	log   *slog.Logger

	mu      sync.Mutex
	known   map[string]*cachedKey // by id
	unknown map[string]time.Time  // ids without a key, and when the store said so
	closed  bool
	work    sync.WaitGroup // pending writes of recordUse
}

// maxUnknown is the number of ids without a key that a Ring remembers.
const maxUnknown = 1000

// A cachedKey is a key as the Ring last read it.
type cachedKey struct {
	store.Key
	at   time.Time // when the Ring read it
	used time.Time // when this Ring last recorded its use
}

// NewRing returns a Ring of the keys in s, which Close closes.
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
	return &Ring{store: s, opts: opts, log: opts.Log, known: map[string]*cachedKey{}, unknown: map[string]time.Time{}}
}

// Close waits for pending writes and closes the store.
func (r *Ring) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.work.Wait()
	return r.store.Close()
}

// errUnknown is the error for every invalid secret: forged, or of a revoked or expired key.
var errUnknown = atoll.Errorf("", "", atoll.ErrDenied, "the token is not known here")

// Verify returns the account of the key with this secret. It reads a key at most once within
// Fresh. Kinds: ErrDenied (invalid secret, or the account's name belongs to other permissions
// now), ErrUnavailable (the store does not respond).
func (r *Ring) Verify(ctx context.Context, secret string) (auth.Account, error) {
	m := secretPattern().FindStringSubmatch(secret)
	if m == nil {
		return auth.Account{}, errUnknown
	}
	k, err := r.findKey(ctx, m[1])
	if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
		return auth.Account{}, atoll.E("", "", atoll.ErrUnavailable, err)
	}
	now := r.opts.now()
	hash := hashSecret(secret)
	good := equalHash(hash, k.Hash)
	old := equalHash(hash, k.OldHash) & isAfter(k.OldUntil, now)
	if err != nil || good|old != 1 || !k.Valid(now) {
		return auth.Account{}, errUnknown
	}
	a, err := r.accountOf(k)
	if err == nil {
		r.recordUse(k.ID, now)
	}
	return a, err
}

// Account returns the account of the key with this id, for what a caller with the key has made. It does
// not count as use of the key. Kinds: as of Verify.
func (r *Ring) Account(ctx context.Context, id string) (auth.Account, error) {
	k, err := r.findKey(ctx, id)
	switch {
	case atoll.KindOf(err) == atoll.ErrNotExist:
		return auth.Account{}, errUnknown
	case err != nil:
		return auth.Account{}, atoll.E("", "", atoll.ErrUnavailable, err)
	case !k.Valid(r.opts.now()):
		return auth.Account{}, errUnknown
	}
	return r.accountOf(k)
}

// accountOf returns the account of a valid key. Kinds: ErrDenied.
func (r *Ring) accountOf(k store.Key) (auth.Account, error) {
	a := auth.Account{Name: k.Account, Role: k.Role, Projects: k.Projects, Key: k.ID, KeyName: k.Name}
	if err := r.checkAccount(a); err != nil { // the configuration has changed since CreateKey
		return auth.Account{}, atoll.E("", "", atoll.ErrDenied, err)
	}
	return a, nil
}

// checkAccount returns an error if an account with other permissions has the name of a. The two
// would share conversations.
func (r *Ring) checkAccount(a auth.Account) error {
	for _, other := range r.opts.Taken {
		if other.WithDefaults().Name == a.Name && other.Identity() != a.Identity() {
			return fmt.Errorf("account %s is in use with other permissions, and would share its conversations; use another account", a.Name)
		}
	}
	return nil
}

// equalHash compares hashes in constant time. It returns 0 if want is "".
func equalHash(hash, want string) int {
	if want == "" {
		want = dummyHash // compare for the same time
	}
	return subtle.ConstantTimeCompare([]byte(hash), []byte(want))
}

// dummyHash has the length of a hash and equals none.
const dummyHash = "................................................................"

// isAfter returns 1 if until is after now, or else 0.
func isAfter(until, now time.Time) int {
	if until.After(now) {
		return 1
	}
	return 0
}

func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// findKey returns the key with this id, from memory or from the store.
func (r *Ring) findKey(ctx context.Context, id string) (store.Key, error) {
	now := r.opts.now()
	r.mu.Lock()
	h, none := r.known[id], r.unknown[id]
	r.mu.Unlock()
	switch {
	case h != nil && now.Sub(h.at) < Fresh:
		return h.Key, nil
	case now.Sub(none) < Fresh: // new keys have random ids, which nobody has looked up before
		return store.Key{}, atoll.E("find key", id, atoll.ErrNotExist, nil)
	}
	k, err := r.store.FindKey(ctx, id)
	switch {
	case atoll.KindOf(err) == atoll.ErrNotExist:
		r.rememberUnknown(id, now)
		return store.Key{}, err
	case err != nil && h != nil && now.Sub(h.at) < Stale && ctx.Err() == nil:
		r.log.Warn("keys: the store does not respond; using the cached key", "key", id, "err", err)
		return h.Key, nil
	case err != nil:
		return store.Key{}, err
	}
	r.rememberKey(k, now)
	return *k, nil
}

// rememberUnknown records that no key has this id. When there are too many such ids, it forgets
// all others.
func (r *Ring) rememberUnknown(id string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.unknown) >= maxUnknown {
		clear(r.unknown)
	}
	r.unknown[id] = at
}

// rememberKey records a key as read at the time at.
func (r *Ring) rememberKey(k *store.Key, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := k.Used
	if h := r.known[k.ID]; h != nil {
		if h.at.After(at) { // a later read came first
			return
		}
		if h.used.After(used) {
			used = h.used
		}
	}
	r.known[k.ID] = &cachedKey{Key: *k, at: at, used: used}
}

// recordUse stores the time of use of a key in the background, at most once per usageInterval.
func (r *Ring) recordUse(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.known[id]
	if r.closed || h == nil || now.Sub(h.used) < usageInterval {
		return
	}
	h.used = now
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.store.UseKey(ctx, id, now); err != nil {
			r.log.Warn("keys: cannot record the use of a key", "key", id, "err", err)
		}
	})
}

// newSecret returns a random secret for the key with this id.
func newSecret(id string) string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	return SecretPrefix + id + "_" + hex.EncodeToString(raw[:])
}

// CreateKey creates a key. Kinds: ErrInvalid, ErrAlreadyExists (the name), ErrConflict (the
// account's name belongs to other permissions), and those of the store.
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
	if err := r.checkAccount(auth.Account{Name: spec.Account, Role: spec.Role, Projects: spec.Projects}); err != nil {
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
	if err = r.store.InsertKey(ctx, &store.Key{Key: made.Key, Hash: hashSecret(secret)}); err != nil {
		return auth.NewKey{}, err
	}
	made.Secret = secret
	return made, nil
}

// Keys lists all keys, including revoked ones, oldest first.
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

// lookUpKey finds a key that is not revoked, by id or name.
func (r *Ring) lookUpKey(ctx context.Context, op, ref string) (auth.Key, error) {
	all, err := r.store.Keys(ctx)
	if err != nil {
		return auth.Key{}, err
	}
	i := slices.IndexFunc(all, func(k *store.Key) bool { return k.ID == ref && k.Revoked.IsZero() })
	if i < 0 {
		i = slices.IndexFunc(all, func(k *store.Key) bool { return k.Name == ref && k.Revoked.IsZero() })
	}
	if i < 0 {
		return auth.Key{}, atoll.Errorf(op, ref, atoll.ErrNotExist, "key not found or revoked")
	}
	return all[i].Key, nil
}

// RotateKey gives a key, by its id or name, a new secret. The current secret remains valid for
// grace; 0 ends it at once, and a negative grace means DefaultRotateGrace. Earlier secrets end at
// once. Other servers with the same store apply the change within Fresh. Kinds: ErrNotExist,
// ErrConflict (the key has expired), and those of the store.
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
	k, err := r.lookUpKey(ctx, op, ref)
	if err != nil {
		return made, err
	}
	now := r.opts.now()
	if !k.Valid(now) {
		return made, atoll.Errorf(op, ref, atoll.ErrConflict, "the key has expired; remove it and create a new one")
	}
	secret := newSecret(k.ID)
	changed, err := r.store.RotateKey(ctx, k.ID, hashSecret(secret), now, now.Add(time.Duration(grace)))
	if err != nil {
		return made, err
	}
	r.rememberKey(changed, r.opts.now())
	return auth.NewKey{Key: changed.Key, Secret: secret}, nil
}

// RevokeKey revokes a key permanently, by its id or name. Other servers with the same store apply
// the change within Fresh. Kinds: ErrNotExist, and those of the store.
func (r *Ring) RevokeKey(ctx context.Context, ref string) (err error) {
	const op = "remove key"
	k := auth.Key{Name: ref}
	defer func() { r.opts.Changed(ctx, op, k, err) }()
	found, err := r.lookUpKey(ctx, op, ref)
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
