package store

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll/server/auth"
)

// A Key is a stored API key, with hashes of its secrets.
type Key struct {
	auth.Key
	Hash    string // of the secret
	OldHash string // of the previous secret, valid until OldUntil; "" for none
}

// Keys stores API keys. All methods are safe for concurrent use by goroutines and programs. All methods return the
// error kinds of a Store. Read methods do not create a missing store. Times have millisecond precision.
type Keys interface {
	// InsertKey adds k. Kinds: ErrAlreadyExists (a key with this name is not revoked), ErrConflict (a key of the
	// account, revoked or not, has another role or other projects; both keys would own what the account owns).
	InsertKey(ctx context.Context, k *Key) error
	// FindKey returns one key. Kinds: ErrNotExist.
	FindKey(ctx context.Context, id string) (*Key, error)
	// Keys returns all keys, including revoked ones, oldest first.
	Keys(ctx context.Context) ([]*Key, error)
	// RotateKey replaces the secret of a key by another one, given by its hash. The current secret remains valid
	// until until; an earlier one expires at once. Kinds: ErrNotExist (no such key, or it is revoked).
	RotateKey(ctx context.Context, id, hash string, now, until time.Time) (*Key, error)
	// RevokeKey revokes a key. Kinds: ErrNotExist (no such key, or it is revoked).
	RevokeKey(ctx context.Context, id string, now time.Time) error
	// UseKey records now as the time of the last use, unless a later use is on record.
	UseKey(ctx context.Context, id string, now time.Time) error
	// Close releases the resources of the store. A second call does nothing.
	Close() error
}
