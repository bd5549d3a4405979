package store

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// An AuditEvent is one entry of an audit log: an operation, its caller, its target and its result.
type AuditEvent struct {
	ID     int64     `json:"id"`     // position in the log, ascending; 0 if the event is in no log
	Time   time.Time `json:"time"`   // when the call ended
	Server string    `json:"server"` // the server that did the operation

	Account string `json:"account"`            // the account of the caller
	Role    string `json:"role"`               // the role of the account
	Key     string `json:"key,omitempty"`      // id of the API key; empty for other credentials
	KeyName string `json:"key_name,omitempty"` // name of the API key
	auth.Origin

	Op      string     `json:"op"`                // "create", "exec", "remove", "create key", ...
	Project string     `json:"project,omitempty"` // empty if unknown
	Sandbox string     `json:"sandbox,omitempty"` // id of the sandbox
	Target  string     `json:"target,omitempty"`  // other target of the operation: a name, a key, a volume
	Command []string   `json:"command,omitempty"` // the command that ran, with likely secrets removed
	Kind    atoll.Kind `json:"kind,omitempty"`    // kind of the error; empty on success
	Message string     `json:"message,omitempty"` // of the error
}

// An AuditQuery selects events. The zero value selects the newest ones.
type AuditQuery struct {
	Project string    // only events of this project
	Sandbox string    // only events of this sandbox
	Account string    // only events of this account
	Since   time.Time // only events at or after this time
	// After and Before are exclusive bounds of the event IDs; 0 means no bound. With After set, a query returns the
	// oldest matching events, otherwise the newest.
	After, Before int64
	Limit         int // maximum number of events; 0 means 100
}

// MaxAuditEvents is the maximum number of events that one query returns.
const MaxAuditEvents = 1000

// Audit stores an audit log. All methods are safe for concurrent use by goroutines and programs. All methods return
// the error kinds of a Store. Read methods do not create a missing store. Times have millisecond precision.
type Audit interface {
	// AddEvents adds all of events in their order, or none. A reader that continues after the last event it has read
	// misses no event. A loss of power in the next second may undo the call.
	AddEvents(ctx context.Context, events []AuditEvent) error
	// Events returns the events that q selects, in the order of the log.
	Events(ctx context.Context, q AuditQuery) ([]AuditEvent, error)
	// DropEvents deletes events older than before, the oldest first and at most most of them, and returns the number
	// of deleted events. The number is below most only if no older events remain, or another caller deletes them.
	DropEvents(ctx context.Context, before time.Time, most int) (int64, error)
	// Close releases the resources of the log. A second call does nothing.
	Close() error
}
