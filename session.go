package atoll

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A ScopeKind says what a sandbox is had for.
type ScopeKind string

// The kinds of scope.
const (
	ScopeWorkflow     ScopeKind = "workflow" // a run of several agents, one after the other or side by side
	ScopeAgent        ScopeKind = "agent"    // a run of one
	ScopeSession      ScopeKind = "session"  // whatever a program calls so
	ScopeConversation ScopeKind = "conversation"
)

// A Scope is what a session lives and ends with.
type Scope struct {
	Kind ScopeKind `json:"kind"`
	ID   string    `json:"id"` // see ValidName
}

// Key is how a session is named, in its project: "workflow_wf_abc123_sandbox".
func (s Scope) Key() string { return string(s.Kind) + "_" + s.ID + keySuffix }

const keySuffix = "_sandbox"

// Validate reports what is wrong with s, as ErrInvalid.
func (s Scope) Validate() error {
	switch s.Kind {
	case ScopeWorkflow, ScopeAgent, ScopeSession, ScopeConversation:
	default:
		return Errorf("session", s.ID, ErrInvalid, "scope %q: use workflow, agent, session or conversation", s.Kind)
	}
	if !ValidName(s.ID) {
		return Errorf("session", s.ID, ErrInvalid, "id %q of the %s: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.ID, s.Kind)
	}
	return nil
}

// ParseScope reads a Scope as people write it, "workflow/wf_abc123", or the Key of
// one. Kinds: ErrInvalid.
func ParseScope(text string) (Scope, error) {
	kind, id, ok := strings.Cut(text, "/")
	if !ok {
		var tail bool
		kind, id, ok = strings.Cut(text, "_")
		id, tail = strings.CutSuffix(id, keySuffix)
		ok = ok && tail
	}
	if !ok {
		return Scope{}, Errorf("session", text, ErrInvalid, "scope %q: write it like workflow/wf_abc123, or workflow_wf_abc123_sandbox", text)
	}
	s := Scope{ScopeKind(kind), id}
	return s, s.Validate()
}

// An ExecutionContext says for whom a tool is called.
type ExecutionContext struct {
	WorkflowRunID string `json:"workflow_run_id,omitempty"` // of the workflow that the agent runs in, if it does
	AgentRunID    string `json:"agent_run_id,omitempty"`
	AgentName     string `json:"agent_name,omitempty"`
	Environment   string `json:"environment,omitempty"` // of the agent's definition: "default", "production"
}

// Scope is the workflow's if there is one and the agent does not want a session of
// its own, else the agent's. want is ScopeWorkflow, ScopeAgent or "", which means
// the workflow's. Kinds: ErrInvalid (there is neither, or an id is none).
func (c ExecutionContext) Scope(want ScopeKind) (Scope, error) {
	s := Scope{ScopeWorkflow, c.WorkflowRunID}
	switch want {
	case ScopeWorkflow, "":
	case ScopeAgent:
		s.ID = ""
	default:
		return Scope{}, Errorf("session", "", ErrInvalid, "session %q: use workflow or agent", want)
	}
	if s.ID == "" {
		s = Scope{ScopeAgent, c.AgentRunID}
	}
	if s.ID == "" {
		return Scope{}, Errorf("session", "", ErrInvalid, "the call names neither a workflow run nor an agent run: give it one, whose sandbox it is to use")
	}
	return s, s.Validate()
}

// How long a session lives that says nothing of it.
const (
	DefaultSessionIdleTimeout = Duration(30 * time.Minute)
	DefaultSessionMaxLifetime = Duration(4 * time.Hour)
)

// A SessionSpec says which session is wanted, and what it is made of if it is not
// there. It is pure data.
type SessionSpec struct {
	Project string `json:"project,omitempty"` // DefaultProject when empty
	Scope   Scope  `json:"scope"`
	// Workflow is the id of the workflow run with which the session ends, too, as
	// that of an agent that has a session of its own. The first one that is named
	// holds, also by who opens it again.
	Workflow string `json:"workflow,omitempty"`
	// Sandbox is what the sandbox is made from. Its ID, Project, TTL, IdleStop and
	// IdleRemove are the session's to say.
	Sandbox Spec `json:"sandbox,omitzero"`
	// IdleTimeout ends the session when for so long nobody has used its sandbox,
	// as in Spec.IdleStop. 0 means DefaultSessionIdleTimeout or what is
	// configured, and Never lifts it.
	IdleTimeout Duration `json:"idle_timeout,omitzero"`
	// MaxLifetime ends it that long after its sandbox was made, whatever goes on
	// in it. 0 means DefaultSessionMaxLifetime or what is configured, and Never
	// lifts it.
	MaxLifetime Duration `json:"max_lifetime,omitzero"`
}

// Validate reports the first thing that is wrong with s, as ErrInvalid.
func (s *SessionSpec) Validate() error {
	bad := func(format string, args ...any) error {
		return Errorf("open session", s.Scope.ID, ErrInvalid, format, args...)
	}
	if err := s.Scope.Validate(); err != nil {
		return err
	}
	box := &s.Sandbox
	switch {
	case s.Project != "" && !ValidName(s.Project):
		return bad("project %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Project)
	case s.Workflow != "" && !ValidName(s.Workflow):
		return bad("workflow %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Workflow)
	case box.ID != "" || box.Project != "" || box.TTL != 0 || box.IdleStop != 0 || box.IdleRemove:
		return bad("the id, project, ttl, idle_stop and idle_remove of the sandbox are for the session to say")
	case box.AutoRemove || box.NoStart:
		return bad("the sandbox of a session runs until that ends: auto_remove and no_start are not for it")
	}
	for what, d := range map[string]Duration{"idle_timeout": s.IdleTimeout, "max_lifetime": s.MaxLifetime} {
		if d < Never {
			return bad("%s %s: must not be negative", what, d)
		}
	}
	return box.Validate()
}

// A SessionState is where a session is in its life.
type SessionState string

// The states of sessions.
const (
	SessionOpening SessionState = "opening"
	SessionOpen    SessionState = "open"
	SessionClosing SessionState = "closing" // Problem says why it still is
)

// A Session binds a scope to a sandbox.
type Session struct {
	Key      string       `json:"key"` // of Scope; unique in the project
	Project  string       `json:"project"`
	Scope    Scope        `json:"scope"`
	Workflow string       `json:"workflow,omitempty"`
	State    SessionState `json:"state"`
	Problem  string       `json:"problem,omitempty"` // why the last attempt to close it failed
	Sandbox  string       `json:"sandbox"`           // its id
	Spec     Spec         `json:"spec"`              // what the sandbox was made from
	Created  time.Time    `json:"created"`           // when the session was
	Opened   time.Time    `json:"opened"`            // the last time
	Expires  time.Time    `json:"expires,omitzero"`  // when MaxLifetime ends it

	IdleTimeout Duration `json:"idle_timeout"`
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

// An OpenedSession is what OpenSession returns.
type OpenedSession struct {
	Session
	Opening Opening `json:"opening"`
	// Note says, where the sandbox is not the one that the last caller left, what
	// has become of that.
	Note string `json:"note,omitempty"`
}

// A SessionStore is a Provider that keeps sessions.
type SessionStore interface {
	// OpenSession returns the session of a scope with its sandbox running: the
	// same one for all who open it, made by the first, started again if it
	// stopped. One that has gone, by its idle timeout for example, or that cannot
	// be started again, is replaced, and that is told for days after it went. A
	// session that is there, or was, keeps what it was made from. It counts as
	// use. Kinds, besides those of Create and Start: ErrInvalid.
	OpenSession(ctx context.Context, spec *SessionSpec) (OpenedSession, error)

	// Sessions lists those of a project, or with "" of all, oldest first. One
	// whose sandbox is gone is not listed.
	Sessions(ctx context.Context, project string) ([]Session, error)

	// CloseSession removes the sandbox, data volume included, and forgets the
	// session. If that fails the session stays, is listed as closing, and is
	// tried again: by whoever opens or closes it next, and from time to time. ""
	// means DefaultProject. Kinds: ErrNotExist.
	CloseSession(ctx context.Context, project, key string) error
}

// OpenSession returns the session of a scope, and its sandbox, which runs.
func OpenSession(ctx context.Context, p Provider, spec *SessionSpec) (OpenedSession, error) {
	if s, ok := As[SessionStore](p); ok {
		return s.OpenSession(ctx, spec)
	}
	return OpenedSession{}, E("open session", spec.Scope.ID, ErrUnsupported, nil)
}

// Sessions lists the sessions of a project, or with "" of all.
func Sessions(ctx context.Context, p Provider, project string) ([]Session, error) {
	if s, ok := As[SessionStore](p); ok {
		return s.Sessions(ctx, project)
	}
	return nil, E("sessions", project, ErrUnsupported, nil)
}

// CloseSession ends a session, and removes its sandbox.
func CloseSession(ctx context.Context, p Provider, project, key string) error {
	if s, ok := As[SessionStore](p); ok {
		return s.CloseSession(ctx, project, key)
	}
	return E("close session", key, ErrUnsupported, nil)
}

// EndScope closes the session of a scope whose run has ended, and those of the
// agents that were part of a workflow. It returns the keys of those that it has
// closed: having none to close is no error. All are tried, whichever fail.
func EndScope(ctx context.Context, p Provider, project string, scope Scope) (closed []string, err error) {
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	if project == "" {
		project = DefaultProject
	}
	all, err := Sessions(ctx, p, project)
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
		switch closeErr := CloseSession(ctx, p, project, key); {
		case closeErr == nil:
			closed = append(closed, key)
		case KindOf(closeErr) != ErrNotExist: // else there is none, or somebody else has
			failed, err = append(failed, key), closeErr
		}
	}
	if len(failed) > 1 {
		err = fmt.Errorf("%d sessions are still there (%s), the last one: %w", len(failed), strings.Join(failed, ", "), err)
	}
	return closed, err
}
