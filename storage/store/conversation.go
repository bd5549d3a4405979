package store

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll/agent"
)

// A Conversation is the stored state of one conversation.
type Conversation struct {
	agent.Conversation
	// Until is the time by which the server that runs Turn has to renew its claim. It is zero if no turn runs.
	Until time.Time
	// Caller identifies the account that started Turn, as auth.Account.Identity returns it, and is stored with Turn. It is
	// "" if an older program started the turn.
	Caller string
	Turns  int64 // number of turns, including the running one
	Rev    int64 // revision of the record; set by the store
}

// An AgentSandbox is the stored state of a sandbox with a template.
type AgentSandbox struct {
	agent.Sandbox
	Rev int64 // revision of the record; set by the store
}

// A Page selects part of a list.
type Page struct {
	// After is the id after which the page starts, or for messages the key before which it ends; "" starts at the beginning.
	After string
	Limit int // maximum number of entries; must be positive
}

// Conversations stores conversations, their messages, and the sandboxes that have templates. All records belong to an
// account; the records of other accounts are invisible. All methods are safe for concurrent use by goroutines and
// programs, and by programs on several machines if the implementation says so. After a call returns nil, all later
// calls see its change. All methods return the error kinds of a Store.
//
// Reads return texts byte for byte as written. Times have microsecond precision and are in UTC. Methods return
// ErrInvalid for arguments that CheckConversation, CheckMessage, CheckSandbox or CheckPage refuse.
//
// InsertConversation, UpdateConversation and their like also set the Rev of their argument. They change nothing else
// in it, except for the Time of a message. The Rev of a new record differs from all that a deleted record of the same
// id ever had.
type Conversations interface {
	// InsertConversation adds c, with its Stats, and sets its Rev. Kinds:
	// ErrAlreadyExists.
	InsertConversation(ctx context.Context, c *Conversation) error
	// UpdateConversation replaces the revision that c was read as, and increments Rev. It does not write Stats: only
	// AddMessage and AddUsage change them. Reads return Updated as the later of the value written here and the time
	// of the newest message. Kinds: ErrConflict (ErrChanged: the conversation has been changed or deleted since).
	UpdateConversation(ctx context.Context, c *Conversation) error
	// DeleteConversation deletes the revision that c was read as, and its messages, including those that are added
	// meanwhile. A later conversation of the same id has none of them. Kinds: ErrConflict (ErrChanged).
	DeleteConversation(ctx context.Context, c *Conversation) error
	// FindConversation returns one conversation. Kinds: ErrNotExist.
	FindConversation(ctx context.Context, account, id string) (*Conversation, error)
	// Conversations returns the conversations of an account, sorted by id.
	Conversations(ctx context.Context, account string, page Page) ([]*Conversation, error)
	// RunningTurns returns the conversations of all accounts with a running turn, sorted by account and id. It may
	// miss a turn that has just begun if the implementation says so. It never returns a turn that has ended.
	RunningTurns(ctx context.Context) ([]*Conversation, error)

	// AddMessage adds m to its conversation and counts it there, which changes Updated but not Rev. It neither
	// changes nor counts a message whose key the conversation already has, so a failed call can be repeated.
	//
	// The messages of a conversation are ordered by time. A message that is not newer than the newest one gets the
	// time of that one plus one microsecond. So messages with equal times are in the order of the calls, and a
	// message from a machine whose clock is behind comes last. AddMessage sets the Time of m to the stored one.
	// Kinds: ErrNotExist (of the conversation).
	AddMessage(ctx context.Context, m *agent.Message) error
	// Messages returns the newest messages of a conversation, oldest first. Kinds: ErrNotExist (of the conversation,
	// or of the message of page.After).
	Messages(ctx context.Context, account, conversation string, page Page) ([]*agent.Message, error)
	// AddUsage adds the tokens that a turn used to those of a conversation. turn is the Turns of the conversation
	// during that turn. The tokens of a turn are added once: a call for a turn that is not after the last counted one
	// adds nothing. Rev does not change. Kinds: ErrNotExist.
	AddUsage(ctx context.Context, account, conversation string, turn int64, u agent.TokenUsage) error

	// InsertSandbox adds x, and sets its Rev. Kinds: ErrAlreadyExists.
	InsertSandbox(ctx context.Context, x *AgentSandbox) error
	// UpdateSandbox replaces the revision that x was read as, and increments Rev. Kinds: ErrConflict (ErrChanged).
	UpdateSandbox(ctx context.Context, x *AgentSandbox) error
	// DeleteSandbox deletes the revision that x was read as, without a trace. Kinds: ErrConflict (ErrChanged).
	DeleteSandbox(ctx context.Context, x *AgentSandbox) error
	// FindSandbox returns one sandbox, deleted or not. Kinds: ErrNotExist.
	FindSandbox(ctx context.Context, account, id string) (*AgentSandbox, error)
	// Sandboxes returns the sandboxes of an account that are not deleted, sorted by id.
	Sandboxes(ctx context.Context, account string, page Page) ([]*AgentSandbox, error)

	// Close releases the resources of the store; later calls of other methods return ErrUnavailable. A second call
	// does nothing.
	Close() error
}
