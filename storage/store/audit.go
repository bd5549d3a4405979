package store

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// An AuditEvent is one line of an audit log: who has done what to what, and what came
// of it.
type AuditEvent struct {
	ID     int64     `json:"id"` // its place in the log, ascending; 0 where it is in none
	Time   time.Time `json:"time"`
	Server string    `json:"server"` // which one it was done by

	Account string `json:"account"`
	Role    string `json:"role"`
	Key     string `json:"key,omitempty"`      // id of the API key, where one was shown
	KeyName string `json:"key_name,omitempty"` // and its name
	auth.Origin

	Op      string     `json:"op"`                // "create", "exec", "remove", "create key", ...
	Project string     `json:"project,omitempty"` // as far as it is known
	Sandbox string     `json:"sandbox,omitempty"` // its id
	Target  string     `json:"target,omitempty"`  // what else it was done to: a name, a key, a volume
	Command []string   `json:"command,omitempty"` // that was run, without what looks like a secret
	Kind    atoll.Kind `json:"kind,omitempty"`    // of the error; empty where it was done
	Message string     `json:"message,omitempty"` // of the error
}

// An AuditQuery selects events; its zero value selects the newest ones.
type AuditQuery struct {
	Project string    // only of this one
	Sandbox string    // only of this one
	Account string    // only of this one
	Since   time.Time // only from then on
	// After and Before are IDs, between which events are; with After the oldest of
	// these are returned, else the newest. 0 is no bound.
	After, Before int64
	Limit         int // how many at most; 0 means 100
}

// MaxAuditEvents is how many events one query returns at most.
const MaxAuditEvents = 1000

// Audit keeps an audit log. All methods may be called at once from many goroutines and
// many programs. Kinds, of all methods: those of a Store. What only reads makes no store
// where there is none. Times are kept to the millisecond.
type Audit interface {
	// AddEvents adds events, all or none, in their order. Who reads on after one that
	// is there misses none.
	AddEvents(ctx context.Context, events []AuditEvent) error
	// Events reads those that q selects, in the order of the log.
	Events(ctx context.Context, q AuditQuery) ([]AuditEvent, error)
	// DropEvents deletes those from before a time, the oldest ones and most of them at
	// once, and says how many: fewer if no others are left that nobody else deletes.
	DropEvents(ctx context.Context, before time.Time, most int) (int64, error)
	// Close gives up what is held. A second one does nothing.
	Close() error
}
