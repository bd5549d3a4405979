package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// The defaults of IdleTimeout and MaxLifetime.
const (
	DefaultIdleTimeout = atoll.Duration(30 * time.Minute)
	DefaultMaxLifetime = atoll.Duration(4 * time.Hour)
)

// A Spec selects a session by its scope, and says how to create it if it does not
// exist. It is pure data.
type Spec struct {
	Project string `json:"project,omitempty"` // DefaultProject if empty
	Scope   Scope  `json:"scope"`             // owner of the sandbox
	// Workflow is the ID of a workflow run that ends the session, too, for example
	// that of an agent with a session of its own. The first call that sets it
	// decides, even if the session exists already.
	Workflow string `json:"workflow,omitempty"`
	// Sandbox is the spec of the sandbox. The session sets its ID, Project, TTL,
	// IdleStop and IdleRemove.
	Sandbox atoll.Spec `json:"sandbox,omitzero"`
	// IdleTimeout ends the session after this time without use of its sandbox, as
	// defined by atoll.Spec.IdleStop. 0 means Options.IdleTimeout; Never disables
	// it.
	IdleTimeout atoll.Duration `json:"idle_timeout,omitzero"`
	// MaxLifetime ends the session this long after the creation of its sandbox,
	// even if it is in use. 0 means Options.MaxLifetime; Never disables it.
	MaxLifetime atoll.Duration `json:"max_lifetime,omitzero"`
}

// Validate returns the first fault of s, as ErrInvalid.
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
		return bad("the session sets the id, project, ttl, idle_stop and idle_remove of its sandbox; remove them")
	case box.AutoRemove || box.NoStart:
		return bad("auto_remove and no_start are not allowed: the sandbox of a session runs until the session ends")
	}
	for field, d := range map[string]atoll.Duration{"idle_timeout": s.IdleTimeout, "max_lifetime": s.MaxLifetime} {
		if d < atoll.Never {
			return bad("%s %s: must not be negative", field, d)
		}
	}
	return box.Validate()
}

// A State is the state of a session.
type State string

// The states of sessions.
const (
	StateOpening State = "opening"
	StateOpen    State = "open"
	StateClosing State = "closing" // see Problem
)

// A Session binds a scope to a sandbox.
type Session struct {
	Key      string     `json:"key"`                // Scope.Key, unique in the project
	Project  string     `json:"project"`            // the project of its sandbox
	Scope    Scope      `json:"scope"`              // owner of the sandbox
	Workflow string     `json:"workflow,omitempty"` // the workflow that ends the session
	State    State      `json:"state"`              // whether it can be used
	Problem  string     `json:"problem,omitempty"`  // why the last attempt to close it failed
	Sandbox  string     `json:"sandbox"`            // the ID of the sandbox
	Spec     atoll.Spec `json:"spec"`               // the spec of the sandbox
	Created  time.Time  `json:"created"`            // the creation of the session
	Opened   time.Time  `json:"opened"`             // the last OpenSession
	Expires  time.Time  `json:"expires,omitzero"`   // when MaxLifetime ends the session

	IdleTimeout atoll.Duration `json:"idle_timeout"` // time without use after which it ends
}

// An Opening says how a session got its sandbox.
type Opening string

// The values of Opening.
const (
	OpeningMade      Opening = "made"      // a new sandbox
	OpeningFound     Opening = "found"     // it was running
	OpeningRestarted Opening = "restarted" // it was stopped or failed; its processes are gone, and Caps.Durable says which files remain
	OpeningReplaced  Opening = "replaced"  // a new sandbox, because the old one was gone or did not start
)

// An OpenResult is the result of Open.
type OpenResult struct {
	Session
	Opening Opening `json:"opening"` // how the sandbox came about
	// Note describes what happened to the sandbox since the last caller used it; ""
	// if nothing did.
	Note string `json:"note,omitempty"`
}

// A Manager is a Provider that has sessions.
type Manager interface {
	// OpenSession returns the session of a scope, with its sandbox running. All
	// callers with the same scope get the same session. The first call creates it;
	// a later call starts a stopped sandbox again. If the sandbox is gone, for
	// example because of its idle timeout, or does not start, OpenSession replaces
	// it and says so in Note, for some days after its end. An existing session
	// keeps its spec. The call counts as use. Kinds, besides those of Create and
	// Start: ErrInvalid.
	OpenSession(ctx context.Context, spec *Spec) (OpenResult, error)

	// Sessions returns the sessions of a project, or of all projects if project is
	// "", oldest first. It omits sessions whose sandbox is gone.
	Sessions(ctx context.Context, project string) ([]Session, error)

	// CloseSession removes the sandbox with its data volume, and deletes the
	// session. If the removal fails, the session remains in StateClosing. The next
	// open or close tries again, and so does maintenance from time to time. An
	// empty project means DefaultProject. Kinds: ErrNotExist.
	CloseSession(ctx context.Context, project, key string) error
}

// Open returns the session of a scope, with its sandbox running.
func Open(ctx context.Context, p atoll.Provider, spec *Spec) (OpenResult, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.OpenSession(ctx, spec)
	}
	return OpenResult{}, atoll.E("open session", spec.Scope.ID, atoll.ErrUnsupported, nil)
}

// List returns the sessions of a project, or of all projects if project is "".
func List(ctx context.Context, p atoll.Provider, project string) ([]Session, error) {
	if s, ok := atoll.As[Manager](p); ok {
		return s.Sessions(ctx, project)
	}
	return nil, atoll.E("sessions", project, atoll.ErrUnsupported, nil)
}

// Close ends a session and removes its sandbox.
func Close(ctx context.Context, p atoll.Provider, project, key string) error {
	if s, ok := atoll.As[Manager](p); ok {
		return s.CloseSession(ctx, project, key)
	}
	return atoll.E("close session", key, atoll.ErrUnsupported, nil)
}

// EndScope closes the session of a scope that has ended and, for a workflow, those
// of its agents. It returns the keys of the sessions that it closed. It is not an
// error if there is none. It tries all, even if one fails.
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
	keys := []string{scope.Key()} // even if it is not listed: its record may remain
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
		case atoll.KindOf(closeErr) != atoll.ErrNotExist: // ErrNotExist: no such session, or already closed
			failed, err = append(failed, key), closeErr
		}
	}
	if len(failed) > 1 {
		err = fmt.Errorf("cannot close %d sessions (%s); the last error: %w", len(failed), strings.Join(failed, ", "), err)
	}
	return closed, err
}
