package session

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll/storage/store"
)

// A Record is the stored state of one session.
type Record struct {
	// Spec is what it is made from, with its project. With its key that names it.
	Spec    Spec
	Sandbox string // the id, drawn before the sandbox is made
	State   State
	Holder  string // the program that opens or closes it
	// Problem is why it could not be closed; of one that is being opened, what has
	// become of the sandbox that it had before.
	Problem string
	// Created is when the record was, Opened when it was last opened, Used when
	// its sandbox is last known to have been used: to the millisecond.
	Created, Opened, Used time.Time

	Rev int64 // how often it had been written when it was read; the store's
}

// StateGone is the state of a session whose sandbox has gone. The record remains for a while, so
// that the next call that opens the session can say so and use the same spec.
const StateGone State = "gone"

// A Store stores records of sessions. All methods may be called at once from many goroutines and
// programs. Kinds, of all methods: those of a store.Store.
type Store interface {
	store.Holders

	// InsertSession adds s. Kinds: ErrAlreadyExists (its project has one of its
	// key).
	InsertSession(ctx context.Context, s *Record) error
	// UpdateSession writes s over what it was read as. Kinds: ErrConflict (it has
	// been changed or deleted since).
	UpdateSession(ctx context.Context, s *Record) error
	// DeleteSession deletes what s was read as. Kinds: ErrConflict (it has been
	// changed or deleted since).
	DeleteSession(ctx context.Context, s *Record) error
	// FindSession reads one. Kinds: ErrNotExist.
	FindSession(ctx context.Context, project, key string) (*Record, error)
	// Sessions reads those of a project, or with "" all, oldest first.
	Sessions(ctx context.Context, project string) ([]*Record, error)

	// Close releases the store. A second call does nothing.
	Close() error
}
