package session

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll/storage/store"
)

// A Record is the stored state of one session.
type Record struct {
	// Spec is the spec of the session. Its Project and the key of its Scope name the
	// record.
	Spec    Spec
	Sandbox string // the ID of the sandbox, chosen before its creation
	State   State
	Holder  string // the program that opens or closes the session, or owns its sandbox
	// Problem is the error of the last close. In StateOpening, it describes what
	// happened to the previous sandbox.
	Problem string
	// Created is the creation of the record, Opened the last OpenSession, and Used the
	// last known use of the sandbox, in milliseconds.
	Created, Opened, Used time.Time

	Rev int64 // number of writes before the record was read; set by the store
}

// StateGone is the state of a session whose sandbox has gone. The record remains for a while, so
// that the next call that opens the session can say so and use the same spec.
const StateGone State = "gone"

// A Store stores records of sessions. All methods may be called at once from many goroutines and
// programs. Kinds, of all methods: those of a store.Store.
type Store interface {
	store.Holders

	// InsertSession adds s. Kinds: ErrAlreadyExists (its project has a session with
	// its key).
	InsertSession(ctx context.Context, s *Record) error
	// UpdateSession replaces the record that s was read from. Kinds: ErrConflict (the
	// record was changed or deleted since).
	UpdateSession(ctx context.Context, s *Record) error
	// DeleteSession deletes the record that s was read from. Kinds: ErrConflict (the
	// record was changed or deleted since).
	DeleteSession(ctx context.Context, s *Record) error
	// FindSession returns one record. Kinds: ErrNotExist.
	FindSession(ctx context.Context, project, key string) (*Record, error)
	// Sessions returns the records of a project, or of all projects if project is "",
	// oldest first.
	Sessions(ctx context.Context, project string) ([]*Record, error)

	// Close releases the store. A second call does nothing.
	Close() error
}
