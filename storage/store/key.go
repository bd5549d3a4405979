package store

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll/server/auth"
)

// A Key is what is kept of an API key: of its secrets, only hashes.
type Key struct {
	auth.Key
	Hash    string // of its secret
	OldHash string // of the one before, "" for none, good until OldUntil
}

// Keys keeps those. All methods may be called at once from many goroutines and many
// programs. Kinds, of all methods: those of a Store. What only reads makes no store
// where there is none. Times are kept to the millisecond.
type Keys interface {
	// InsertKey adds k. Kinds: ErrAlreadyExists (one that is not revoked has the
	// name), ErrConflict (a key of the account, revoked or not, has another role or
	// other projects: what the account owns would be those of both).
	InsertKey(ctx context.Context, k *Key) error
	// FindKey reads one. Kinds: ErrNotExist.
	FindKey(ctx context.Context, id string) (*Key, error)
	// Keys reads all, revoked ones too, oldest first.
	Keys(ctx context.Context) ([]*Key, error)
	// RotateKey gives one another secret, by its hash; the one that it has is good
	// until then, and one before that no longer. Kinds: ErrNotExist (there is none,
	// or it is revoked).
	RotateKey(ctx context.Context, id, hash string, now, until time.Time) (*Key, error)
	// RevokeKey ends one. Kinds: ErrNotExist (there is none, or it is revoked).
	RevokeKey(ctx context.Context, id string, now time.Time) error
	// UseKey writes down that one was used, unless it was later.
	UseKey(ctx context.Context, id string, now time.Time) error
	// Close gives up what is held. A second one does nothing.
	Close() error
}
