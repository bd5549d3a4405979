package session

import (
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A ScopeKind says what a session belongs to.
type ScopeKind string

// The kinds of scope.
const (
	ScopeWorkflow     ScopeKind = "workflow" // a run of several agents, in sequence or in parallel
	ScopeAgent        ScopeKind = "agent"    // a run of one agent
	ScopeSession      ScopeKind = "session"  // defined by the program
	ScopeConversation ScopeKind = "conversation"
)

// A Scope is a run, or anything else with an ID, that a session belongs to and ends
// with.
type Scope struct {
	Kind ScopeKind `json:"kind"` // of the ID
	ID   string    `json:"id"`   // see ValidName
}

// Key returns the name of the session in its project, such as
// "workflow_wf_abc123_sandbox".
func (s Scope) Key() string { return string(s.Kind) + "_" + s.ID + keySuffix }

const keySuffix = "_sandbox"

// Validate returns the first fault of s, as ErrInvalid.
func (s Scope) Validate() error {
	switch s.Kind {
	case ScopeWorkflow, ScopeAgent, ScopeSession, ScopeConversation:
	default:
		return atoll.Errorf("session", s.ID, atoll.ErrInvalid, "scope %q: use workflow, agent, session or conversation", s.Kind)
	}
	if !atoll.ValidName(s.ID) {
		return atoll.Errorf("session", s.ID, atoll.ErrInvalid, "%s id %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", s.Kind, s.ID)
	}
	return nil
}

// ParseScope parses a Scope in the form "workflow/wf_abc123", or its Key. Kinds:
// ErrInvalid.
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

// An ExecutionContext identifies the caller of a tool.
type ExecutionContext struct {
	WorkflowRunID string `json:"workflow_run_id,omitempty"` // "" if the agent runs in no workflow
	AgentRunID    string `json:"agent_run_id,omitempty"`
	AgentName     string `json:"agent_name,omitempty"`
	Environment   string `json:"environment,omitempty"` // of the agent's definition: "default", "production"
}

// Scope returns the scope of the workflow run or the agent run. want is
// ScopeWorkflow, ScopeAgent, or "", which means ScopeWorkflow. Without a workflow
// run it is the agent's. Kinds: ErrInvalid (both are empty, or an ID is invalid).
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
		return Scope{}, atoll.Errorf("session", "", atoll.ErrInvalid, "the call has neither a workflow run nor an agent run; set one of them")
	}
	return s, s.Validate()
}
