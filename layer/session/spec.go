package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// How long a session lives that says nothing of it.
const (
	DefaultIdleTimeout = atoll.Duration(30 * time.Minute)
	DefaultMaxLifetime = atoll.Duration(4 * time.Hour)
)

// A Spec says which session is wanted, and what it is made of if it is not
// there. It is pure data.
type Spec struct {
	Project string `json:"project,omitempty"` // DefaultProject when empty
	Scope   Scope  `json:"scope"`
	// Workflow is the id of the workflow run with which the session ends, too, as
	// that of an agent that has a session of its own. The first one that is named
	// holds, also by who opens it again.
	Workflow string `json:"workflow,omitempty"`
	// Sandbox is what the sandbox is made from. Its ID, Project, TTL, IdleStop and
	// IdleRemove are the session's to say.
	Sandbox atoll.Spec `json:"sandbox,omitzero"`
	// IdleTimeout ends the session when for so long nobody has used its sandbox,
	// as in atoll.Spec.IdleStop. 0 means DefaultIdleTimeout or what is
	// configured, and Never lifts it.
	IdleTimeout atoll.Duration `json:"idle_timeout,omitzero"`
	// MaxLifetime ends it that long after its sandbox was made, whatever goes on
	// in it. 0 means DefaultMaxLifetime or what is configured, and Never
	// lifts it.
	MaxLifetime atoll.Duration `json:"max_lifetime,omitzero"`
}

// Validate reports the first thing that is wrong with s, as ErrInvalid.
func (s *Spec) Validate() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("open session", s.Scope.ID, atoll.ErrInvalid, format, args...)
	}
	if err := s.Scope.Validate(); err != nil {
		return err
	}
	box := &s.Sandbox
	switch {
	case s.Project != "" && !atoll.ValidName(s.Project):
		return bad("project %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Project)
	case s.Workflow != "" && !atoll.ValidName(s.Workflow):
		return bad("workflow %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Workflow)
	case box.ID != "" || box.Project != "" || box.TTL != 0 || box.IdleStop != 0 || box.IdleRemove:
		return bad("the id, project, ttl, idle_stop and idle_remove of the sandbox are for the session to say")
	case box.AutoRemove || box.NoStart:
		return bad("the sandbox of a session runs until that ends: auto_remove and no_start are not for it")
	}
	for what, d := range map[string]atoll.Duration{"idle_timeout": s.IdleTimeout, "max_lifetime": s.MaxLifetime} {
		if d < atoll.Never {
			return bad("%s %s: must not be negative", what, d)
		}
	}
	return box.Validate()
}

// A State is where a session is in its life.
type State string

// The states of sessions.
const (
	StateOpening State = "opening"
	StateOpen    State = "open"
	StateClosing State = "closing" // Problem says why it still is
)

// A Session binds a scope to a sandbox.
type Session struct {
	Key      string     `json:"key"` // of Scope; unique in the project
	Project  string     `json:"project"`
	Scope    Scope      `json:"scope"`
	Workflow string     `json:"workflow,omitempty"`
	State    State      `json:"state"`
	Problem  string     `json:"problem,omitempty"` // why the last attempt to close it failed
	Sandbox  string     `json:"sandbox"`           // its id
	Spec     atoll.Spec `json:"spec"`              // what the sandbox was made from
	Created  time.Time  `json:"created"`           // when the session was
	Opened   time.Time  `json:"opened"`            // the last time
	Expires  time.Time  `json:"expires,omitzero"`  // when MaxLifetime ends it

	IdleTimeout atoll.Duration `json:"idle_timeout"`
}

// An Opening says how a session came by its sandbox.
type Opening string

// The ways.
const (
	OpeningMade      Opening = "made"      // there was none
	OpeningFound     Opening = "found"     // running
	OpeningRestarted Opening = "restarted" // it had stopped, or failed: files are there as Caps.Durable says, processes are not
	OpeningReplaced  Opening = "replaced"  // it was gone, or could not be started again
)

// An Opened is what Open returns.
type Opened struct {
	Session
	Opening Opening `json:"opening"`
	// Note says, where the sandbox is not the one that the last caller left, what
	// has become of that.
	Note string `json:"note,omitempty"`
}

// A Manager is a Provider that keeps sessions.
type Manager interface {
	// OpenSession returns the session of a scope with its sandbox running: the
	// same one for all who open it, made by the first, started again if it
	// stopped. One that has gone, by its idle timeout for example, or that cannot
	// be started again, is replaced, and that is told for days after it went. A
	// session that is there, or was, keeps what it was made from. It counts as
	// use. Kinds, besides those of Create and Start: ErrInvalid.
	OpenSession(ctx context.Context, spec *Spec) (Opened, error)

	// Sessions lists those of a project, or with "" of all, oldest first. One
	// whose sandbox is gone is not listed.
	Sessions(ctx context.Context, project string) ([]Session, error)

	// CloseSession removes the sandbox, data volume included, and forgets the
	// session. If that fails the session stays, is listed as closing, and is
	// tried again: by whoever opens or closes it next, and from time to time. ""
	// means DefaultProject. Kinds: ErrNotExist.
	CloseSession(ctx context.Context, project, key string) error
}

// Open returns the session of a scope, and its sandbox, which runs.
func Open(ctx context.Context, p atoll.Provider, spec *Spec) (Opened, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.OpenSession(ctx, spec)
	}
	return Opened{}, atoll.E("open session", spec.Scope.ID, atoll.ErrUnsupported, nil)
}

// List lists the sessions of a project, or with "" of all.
func List(ctx context.Context, p atoll.Provider, project string) ([]Session, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.Sessions(ctx, project)
	}
	return nil, atoll.E("sessions", project, atoll.ErrUnsupported, nil)
}

// Close ends a session, and removes its sandbox.
func Close(ctx context.Context, p atoll.Provider, project, key string) error {
	if s, ok := atoll.As[Manager](p); ok {
		return s.CloseSession(ctx, project, key)
	}
	return atoll.E("close session", key, atoll.ErrUnsupported, nil)
}

// EndScope closes the session of a scope whose run has ended, and those of the
// agents that were part of a workflow. It returns the keys of those that it has
// closed: having none to close is no error. All are tried, whichever fail.
func EndScope(ctx context.Context, p atoll.Provider, project string, scope Scope) (closed []string, err error) {
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	if project == "" {
		project = atoll.DefaultProject
	}
	all, err := List(ctx, p, project)
	if err != nil {
		return nil, err
	}
	keys := []string{scope.Key()} // listed or not: that its sandbox had gone is of no interest any more
	for _, s := range all {
		if s.Scope != scope && scope.Kind == ScopeWorkflow && s.Workflow == scope.ID {
			keys = append(keys, s.Key)
		}
	}
	var failed []string
	for _, key := range keys {
		switch closeErr := Close(ctx, p, project, key); {
		case closeErr == nil:
			closed = append(closed, key)
		case atoll.KindOf(closeErr) != atoll.ErrNotExist: // else there is none, or somebody else has
			failed, err = append(failed, key), closeErr
		}
	}
	if len(failed) > 1 {
		err = fmt.Errorf("%d sessions are still there (%s), the last one: %w", len(failed), strings.Join(failed, ", "), err)
	}
	return closed, err
}
