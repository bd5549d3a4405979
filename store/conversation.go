package store

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Conversation is what is known of one conversation.
type Conversation struct {
	atoll.Conversation
	// Until is when the server that runs Turn has to have said again that it does. It
	// is zero when there is no turn.
	Until time.Time
	Turns int64 // how many there were, with the one that runs
	Rev   int64 // how often it had been written when it was read; the store's
}

// An AgentSandbox is what is known of a sandbox with a template.
type AgentSandbox struct {
	atoll.AgentSandbox
	Rev int64 // how often it had been written when it was read; the store's
}

// A Page selects some of a list.
type Page struct {
	After string // what comes after the one with this id, or of messages before the one with this key; "" is from the start
	Limit int    // at most so many; it must be positive
}

// Conversations keeps conversations, their messages, and the sandboxes that have
// templates. All is by account: what another one has is not there. The methods may be
// called at once from many goroutines and many programs, on many machines where the
// implementation says so. Kinds, of all methods: those of Store.
//
// Times are kept to the microsecond.
type Conversations interface {
	// InsertConversation adds c, and sets its Rev. Kinds: ErrAlreadyExists.
	InsertConversation(ctx context.Context, c *Conversation) error
	// UpdateConversation writes c over what it was read as, and raises its Rev. Its
	// Stats are not written: only AddMessage and AddUsage change them. Kinds:
	// ErrConflict (ErrChanged: it has been changed or deleted since).
	UpdateConversation(ctx context.Context, c *Conversation) error
	// DeleteConversation deletes what c was read as, and its messages. Kinds:
	// ErrConflict (ErrChanged).
	DeleteConversation(ctx context.Context, c *Conversation) error
	// FindConversation reads one. Kinds: ErrNotExist.
	FindConversation(ctx context.Context, account, id string) (*Conversation, error)
	// Conversations reads those of an account, sorted by id.
	Conversations(ctx context.Context, account string, page Page) ([]*Conversation, error)
	// RunningTurns reads the conversations of all accounts that have a turn.
	RunningTurns(ctx context.Context) ([]*Conversation, error)

	// AddMessage adds m to its conversation, and counts it there; one whose key is
	// there already is left as it is, and not counted. Kinds: ErrNotExist (of the
	// conversation).
	AddMessage(ctx context.Context, m *atoll.Message) error
	// Messages reads the newest ones of a conversation, the oldest of them first.
	Messages(ctx context.Context, account, conversation string, page Page) ([]*atoll.Message, error)
	// AddUsage adds u to the tokens of a conversation. Kinds: ErrNotExist.
	AddUsage(ctx context.Context, account, conversation string, u atoll.TokenUsage) error

	// InsertSandbox adds x, and sets its Rev. Kinds: ErrAlreadyExists.
	InsertSandbox(ctx context.Context, x *AgentSandbox) error
	// UpdateSandbox writes x over what it was read as, and raises its Rev. Kinds:
	// ErrConflict (ErrChanged).
	UpdateSandbox(ctx context.Context, x *AgentSandbox) error
	// DeleteSandbox deletes what x was read as, as if it had never been. Kinds:
	// ErrConflict (ErrChanged).
	DeleteSandbox(ctx context.Context, x *AgentSandbox) error
	// FindSandbox reads one, deleted or not. Kinds: ErrNotExist.
	FindSandbox(ctx context.Context, account, id string) (*AgentSandbox, error)
	// Sandboxes reads those of an account that are not deleted, sorted by id.
	Sandboxes(ctx context.Context, account string, page Page) ([]*AgentSandbox, error)

	// Close gives up what is held. A second one does nothing.
	Close() error
}
