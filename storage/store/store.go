// Package store has the interfaces and records of what outlives every program: desired
// sandboxes, the changes in progress, secrets, sessions, warm sandboxes, conversations, keys
// and the audit log. All programs that use a state directory share one store.
//
// Package sqlite stores them in a file, for the programs of one machine; package postgres
// stores them in the same tables on a server, for programs on many machines; package dynamo
// stores conversations in DynamoDB. Package storetest checks the promises.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Store keeps records. All methods are safe for concurrent use by goroutines and programs. After a call returns
// nil, its change survives whenever and however the program ends. Kinds, of all methods: ErrUnavailable (the store
// cannot be opened, or is busy for too long), ErrDenied, ErrExhausted (the disk is full), ErrInternal (the store is
// damaged), ErrInvalid (an argument has a character that the implementation cannot store).
type Store interface {
	Sandboxes
	WarmSandboxes
	Secrets
	Holders

	// Identity distinguishes the store from another one that has replaced it.
	Identity(ctx context.Context) (Identity, error)
	// Close releases the resources of the store. A second call does nothing.
	Close() error
}

// An Identity is created at random with a store.
type Identity struct {
	ID      string // 32 hex digits
	Created time.Time
}

// A State is the state of a sandbox's record.
type State string

// The states of a record. All but Present are intents: the registry writes them before it calls the provider. If the
// holder of a record is gone, another program can so tell what was to be done.
const (
	Creating   State = "creating"
	Present    State = "present"
	Removing   State = "removing"
	Rebuilding State = "rebuilding" // removed, to be created again from Spec
)

// A Record is the stored state of one sandbox.
type Record struct {
	ID string
	// Scope is the provider that was asked for the sandbox, possibly a router. Provider is the one that created it.
	Scope, Provider string
	// Spec is the spec of the sandbox, with its id and project.
	Spec  atoll.Spec
	State State
	// Volumes means, for Removing, that the data volume is removed too; for Creating, that no data volume existed
	// before, so that an undo removes it.
	Volumes bool
	// Holder is the program that works on the record. For Present, it is the program that the sandbox ends with, or
	// "" if the sandbox outlives all.
	Holder  string
	Reason  string    // of Rebuilding: why the last attempt failed; "" before the first
	Created time.Time // when the record was created, to the millisecond

	Rev int64 // number of writes when the record was read; set by the store
}

// ErrChanged is wrapped by an ErrConflict of Update and Delete.
var ErrChanged = errors.New("another program has changed the record")

// ErrLimit is wrapped by an ErrExhausted of Insert that is not about disk space. If a quota is the limit, the chain
// also has a *QuotaError.
var ErrLimit = errors.New("limit reached")

// A Limits limits the number of records, including the one that is inserted. The zero value is no limit.
type Limits struct {
	Most  int   // records in the store; 0 for any number
	Quota Quota // of the record's project
}

// A QuotaError reports the quota that is used up.
type QuotaError struct {
	Project           string
	Quota             string // its key in the configuration: "memory"
	Used, Asked, Most string // for people
}

// Error implements error.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("project %s exceeds its quota of %s: requested %s, used %s of %s", e.Project, e.Quota, e.Asked, e.Used, e.Most)
}

// Is reports whether target is ErrLimit.
func (e *QuotaError) Is(target error) bool { return target == ErrLimit }

// Sandboxes stores Records.
type Sandboxes interface {
	// Insert adds r. It stores secret for the id of r unless the id has a secret already, and returns the stored one
	// as kept. Concurrent inserts cannot exceed room; a quota limits the total of the specs in the project. A record
	// in another scope may have the name of r, unless r is Creating. Kinds: ErrAlreadyExists (a record has the id, or
	// the name in its project), ErrExhausted (ErrLimit: no room), ErrInvalid (the spec asks for an unlimited amount
	// of a resource with a quota).
	Insert(ctx context.Context, r *Record, secret string, room Limits) (kept string, err error)
	// Update replaces the revision that r was read as. A loss of power in the next second may
	// undo an Update to Present, which is no intent. Kinds: ErrConflict (the record has been changed or deleted
	// since), ErrAlreadyExists (of the name).
	Update(ctx context.Context, r *Record) error
	// Delete deletes the revision that r was read as, and if secret is set the secret of its id. Kinds: ErrConflict
	// (the record has been changed or deleted since).
	Delete(ctx context.Context, r *Record, secret bool) error
	// Forget is Delete for a sandbox that its provider no longer has. The store remembers the id for 30 days and retains
	// its secret, or until a record has the id again.
	Forget(ctx context.Context, r *Record) error
	// Forgotten reports whether the store remembers the id from a call of Forget.
	Forgotten(ctx context.Context, id string) (bool, error)
	// Find returns a record. Kinds: ErrNotFound.
	Find(ctx context.Context, id string) (*Record, error)
	// Named returns the record with a name, preferring that of scope if several scopes have one. Kinds: ErrNotFound.
	Named(ctx context.Context, scope, project, name string) (*Record, error)
	// Records returns all records, oldest first.
	Records(ctx context.Context) ([]*Record, error)
	// InState returns the records of a scope in a state, oldest first. It does not create a missing store.
	InState(ctx context.Context, scope string, state State) ([]*Record, error)
	// Provider returns the provider that created a sandbox, if known.
	Provider(ctx context.Context, id string) (name string, found bool, err error)
}

// A Warm is a warm sandbox: one that was created ahead of need.
type Warm struct {
	ID, Project string
	Scope       string // the provider that created it
	Pool        string
	Holder      string    // the program that holds it in stock; "" after the claim
	Made        time.Time // when its creation began, to the millisecond

	// Set by the claim, to the millisecond; zero while the sandbox is in stock.
	Name    string
	Labels  map[string]string
	TTL     atoll.Duration
	Claimed time.Time
}

// WarmSandboxes stores warm sandboxes. Read methods do not create a missing store.
type WarmSandboxes interface {
	// InsertWarm adds w to the stock. Kinds: ErrAlreadyExists (of the id).
	InsertWarm(ctx context.Context, w *Warm) error
	// ClaimWarm claims w, which is in stock of w.Holder: it stores the name, labels, TTL and time of the claim, and
	// clears w.Holder. Kinds: ErrAlreadyExists (another warm sandbox or a record of any scope has the name),
	// ErrConflict (ErrChanged: w is not in stock of w.Holder).
	ClaimWarm(ctx context.Context, w *Warm) error
	// DropWarm deletes a warm sandbox if it exists.
	DropWarm(ctx context.Context, id string) error
	// FindWarm returns a warm sandbox. Kinds: ErrNotExist.
	FindWarm(ctx context.Context, id string) (*Warm, error)
	// WarmNamed returns the claimed warm sandbox with a name. Kinds: ErrNotExist.
	WarmNamed(ctx context.Context, project, name string) (*Warm, error)
	// Warm returns the warm sandboxes of a scope, oldest first.
	Warm(ctx context.Context, scope string) ([]*Warm, error)
}

// Secrets stores one secret per id. The id may be that of a sandbox without a record.
type Secrets interface {
	// KeepSecret stores secret for an id of a scope, unless the id has a secret already, and returns the stored one
	// as kept.
	KeepSecret(ctx context.Context, scope, id, secret string) (kept string, err error)
	// Secret returns the secret of an id. Kinds: ErrNotExist.
	Secret(ctx context.Context, id string) (string, error)
	// DropSecret deletes the secret of an id, unless a record has the id. It does nothing if there is no secret.
	DropSecret(ctx context.Context, id string) error
	// Abandoned returns the sorted ids of a scope that have a secret and no record, and are not Forgotten.
	Abandoned(ctx context.Context, scope string) ([]string, error)
}

// Holders identifies running programs.
type Holders interface {
	// Holder returns the name of the calling program; the name is valid while the store is open. If the store serves
	// many machines, a program without contact for a while counts as ended, and gets another name afterwards: call
	// Holder each time.
	Holder(ctx context.Context) (string, error)
	// IsAlive reports whether a holder has the store open. It is false for "". After it has returned false for a
	// holder, it never returns true for that holder again.
	IsAlive(ctx context.Context, holder string) (bool, error)
}

// A Quota is the most that the sandboxes of one project may ask for together, running or not. A zero field is no
// quota.
type Quota struct {
	Sandboxes int         `json:"sandboxes,omitempty"`
	Memory    atoll.Bytes `json:"memory,omitempty"`
	CPUs      float64     `json:"cpus,omitempty"`
	Processes int         `json:"processes,omitempty"`
	Disk      atoll.Bytes `json:"disk,omitempty"`
}
