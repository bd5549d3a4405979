package session

import (
	"strings"

	"github.com/seed46cd37a8/atoll"
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
		return atoll.Errorf("session", s.ID, atoll.ErrInvalid, "scope %q: use workflow, agent, session or conversation", s.Kind)
	}
	if !atoll.ValidName(s.ID) {
		return atoll.Errorf("session", s.ID, atoll.ErrInvalid, "id %q of the %s: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.ID, s.Kind)
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
		return Scope{}, atoll.Errorf("session", text, atoll.ErrInvalid, "scope %q: write it like workflow/wf_abc123, or workflow_wf_abc123_sandbox", text)
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
		return Scope{}, atoll.Errorf("session", "", atoll.ErrInvalid, "session %q: use workflow or agent", want)
	}
	if s.ID == "" {
		s = Scope{ScopeAgent, c.AgentRunID}
	}
	if s.ID == "" {
		return Scope{}, atoll.Errorf("session", "", atoll.ErrInvalid, "the call names neither a workflow run nor an agent run: give it one, whose sandbox it is to use")
	}
	return s, s.Validate()
}
