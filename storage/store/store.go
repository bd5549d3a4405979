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

// A Store keeps records. All methods may be called at once from many goroutines
// and many programs. What a call that returned nil has changed is there
// whenever and however its program ends. Kinds, of all methods: ErrUnavailable
// (it cannot be opened, or is busy for too long), ErrDenied, ErrExhausted (the
// disk is full), ErrInternal (it is damaged), ErrInvalid (what is looked for has a
// character that the implementation has no place for).
type Store interface {
	Sandboxes
	Stock
	Secrets
	Holders

	// Identity tells one store from another that has taken its place.
	Identity(ctx context.Context) (Identity, error)
	// Close gives up what is held. A second one does nothing.
	Close() error
}

// An Identity is drawn when a store is made.
type Identity struct {
	ID   string // 32 hex digits
	Born time.Time
}

// State says what is being done to a sandbox.
type State string

// The states of a record. All but Present are intents: they are written before
// the provider is asked, so that whoever finds one whose holder has gone knows
// what was to be done.
const (
	Creating   State = "creating"
	Present    State = "present"
	Removing   State = "removing"
	Rebuilding State = "rebuilding" // removed, to be made again from Spec
)

// A Record is what is known of one sandbox.
type Record struct {
	ID string
	// Scope is the provider that was asked for the sandbox, a router perhaps.
	// Provider is the one that made it.
	Scope, Provider string
	// Spec is what the sandbox is made from, with its id and project.
	Spec    atoll.Spec
	State   State
	Volumes bool // of Removing: the data volume too; of Creating: there was none before, so it goes with what was cut short
	// Holder is the program that works on it; of Present, the one that the
	// sandbox ends with, "" where it outlives all.
	Holder  string
	Reason  string    // of Rebuilding: why it could not be made again; "" until that was tried
	Created time.Time // when the record was, to the millisecond

	Rev int64 // how often it had been written when it was read; the store's
}

// ErrChanged is what an ErrConflict of Update and Delete wraps.
var ErrChanged = errors.New("another program has changed what is written down of it")

// ErrLimit is what an ErrExhausted of Insert wraps that is not about space. Where it
// is a quota, there is a *QuotaError in its chain, too.
var ErrLimit = errors.New("there may be no more")

// Room says how much there may be with a record that is inserted, the zero one that
// there may be any number.
type Room struct {
	Most  int   // records; 0 for any number
	Quota Quota // of the record's project
}

// A QuotaError says which quota leaves no room.
type QuotaError struct {
	Project           string
	Quota             string // its name in the configuration: "memory"
	Used, Asked, Most string // for people
}

// Error implements error.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("project %s may have %s %s, of which %s are used, and this asks for %s", e.Project, e.Most, e.Quota, e.Used, e.Asked)
}

// Is reports that a quota is a limit.
func (e *QuotaError) Is(target error) bool { return target == ErrLimit }

// Sandboxes keeps Records.
type Sandboxes interface {
	// Insert adds r, and keeps secret for its id unless one is kept already;
	// kept is the one that is. With it there is no more than room says, of a
	// quota in the project by what specs ask for, however many insert at once. A
	// sandbox that is there
	// already may have the name of one of another scope; one that is Creating
	// may not. Kinds: ErrAlreadyExists (a record has the id, or the name in its
	// project), ErrExhausted (ErrLimit: there is no room), ErrInvalid (it asks for any
	// amount of what there is a quota for).
	Insert(ctx context.Context, r *Record, secret string, room Room) (kept string, err error)
	// Update writes r over what it was read as. Kinds: ErrConflict (it has been
	// changed or deleted since), ErrAlreadyExists (of the name).
	Update(ctx context.Context, r *Record) error
	// Delete deletes what r was read as, and with secret the secret of its id.
	// Kinds: ErrConflict (it has been changed or deleted since).
	Delete(ctx context.Context, r *Record, secret bool) error
	// Forget is Delete of one that its provider has no longer. That there was one
	// is remembered for 30 days, and its secret kept, or until a record has the id
	// again.
	Forget(ctx context.Context, r *Record) error
	// Forgotten reports whether one with the id is remembered so.
	Forgotten(ctx context.Context, id string) (bool, error)
	// Find reads a record. Kinds: ErrNotFound.
	Find(ctx context.Context, id string) (*Record, error)
	// Named reads the record with a name, that of the scope where others have it
	// too. Kinds: ErrNotFound.
	Named(ctx context.Context, scope, project, name string) (*Record, error)
	// Records reads all, oldest first.
	Records(ctx context.Context) ([]*Record, error)
	// InState reads those of a scope that are in a state, oldest first. It makes
	// no store where there is none.
	InState(ctx context.Context, scope string, state State) ([]*Record, error)
	// Provider is who made a sandbox, as far as that is known.
	Provider(ctx context.Context, id string) (name string, found bool, err error)
}

// A Warm is one sandbox that was made ahead of need.
type Warm struct {
	ID, Project string
	Scope       string // the provider that made it
	Pool        string
	Holder      string    // the program whose stock it is; "" once it is claimed
	Made        time.Time // when it was begun, to the millisecond

	// What whoever claimed it gave it, and when, to the millisecond: zero as long
	// as it is stock.
	Name    string
	Labels  map[string]string
	TTL     atoll.Duration
	Claimed time.Time
}

// Stock keeps those. What only reads makes no store where there is none.
type Stock interface {
	// InsertWarm adds w as stock. Kinds: ErrAlreadyExists (of the id).
	InsertWarm(ctx context.Context, w *Warm) error
	// ClaimWarm gives w, which is stock of w.Holder, what it has of a claim; w has
	// no Holder then. Kinds: ErrAlreadyExists (another one has the name, or a record
	// of whichever scope does), ErrConflict (ErrChanged: it is no stock of w.Holder).
	ClaimWarm(ctx context.Context, w *Warm) error
	// DropWarm deletes one, if it is there.
	DropWarm(ctx context.Context, id string) error
	// FindWarm reads one. Kinds: ErrNotExist.
	FindWarm(ctx context.Context, id string) (*Warm, error)
	// WarmNamed reads the one that was given a name. Kinds: ErrNotExist.
	WarmNamed(ctx context.Context, project, name string) (*Warm, error)
	// Warm reads those of a scope, oldest first.
	Warm(ctx context.Context, scope string) ([]*Warm, error)
}

// Secrets keeps one secret for an id, which may be that of a sandbox without a
// record.
type Secrets interface {
	// KeepSecret keeps secret for an id of a scope, unless one is kept already;
	// kept is the one that is.
	KeepSecret(ctx context.Context, scope, id, secret string) (kept string, err error)
	// Secret reads one. Kinds: ErrNotExist.
	Secret(ctx context.Context, id string) (string, error)
	// DropSecret deletes one, if it is there and no record has the id.
	DropSecret(ctx context.Context, id string) error
	// Abandoned lists the ids of a scope that have a secret and no record, and
	// are not Forgotten, in order.
	Abandoned(ctx context.Context, scope string) ([]string, error)
}

// Holders tells which programs still run.
type Holders interface {
	// Holder names the one who calls, as long as the store is open. Where programs are on
	// many machines, one that cannot be heard of for a while is no longer taken to run, and
	// has another name from then on: ask for it each time.
	Holder(ctx context.Context) (string, error)
	// Alive reports whether a holder has the store open. "" never does, nor does one again
	// that somebody was told of that it has not.
	Alive(ctx context.Context, holder string) (bool, error)
}

// A Quota is how much the sandboxes of one project may ask for together, running or
// not. Zero is no quota.
type Quota struct {
	Sandboxes int         `json:"sandboxes,omitempty"`
	Memory    atoll.Bytes `json:"memory,omitempty"`
	CPUs      float64     `json:"cpus,omitempty"`
	Processes int         `json:"processes,omitempty"`
	Disk      atoll.Bytes `json:"disk,omitempty"`
}
