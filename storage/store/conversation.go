package store

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll/agent"
)

// A Conversation is what is known of one conversation.
type Conversation struct {
	agent.Conversation
	// Until is when the server that runs Turn has to have said again that it does. It
	// is zero when there is no turn.
	Until time.Time
	// Caller is whose Turn is, as auth.Account.Who says it, which is kept with that; "" of
	// one that an older program has begun.
	Caller string
	Turns  int64 // how many there were, with the one that runs
	Rev    int64 // which writing of it was read; the store's
}

// An AgentSandbox is what is known of a sandbox with a template.
type AgentSandbox struct {
	agent.Sandbox
	Rev int64 // which writing of it was read; the store's
}

// A Page selects some of a list.
type Page struct {
	After string // what comes after the one with this id, or of messages before the one with this key; "" is from the start
	Limit int    // at most so many; it must be positive
}

// Conversations keeps conversations, their messages, and the sandboxes that have
// templates. All is by account: what another one has is not there. The methods may be
// called at once from many goroutines and many programs, on many machines where the
// implementation says so. What a call that returned nil has changed is there for all
// that begin after it. Kinds, of all methods: those of Store.
//
// What is written is what is read, to the byte. Times are kept to the microsecond, and
// read in UTC. What CheckConversation, CheckMessage, CheckSandbox and CheckPage refuse is
// ErrInvalid.
//
// The Rev that InsertConversation, UpdateConversation and their like set and raise is
// that of their argument too; nothing else of that is changed but the Time of a message.
// What is inserted where something was deleted has another Rev than that ever had.
type Conversations interface {
	// InsertConversation adds c, with its Stats, and sets its Rev. Kinds:
	// ErrAlreadyExists.
	InsertConversation(ctx context.Context, c *Conversation) error
	// UpdateConversation writes c over what it was read as, and raises its Rev. Its
	// Stats are not written: only AddMessage and AddUsage change them. Updated is read
	// as the later one of what was written here and of the time of the newest message.
	// Kinds: ErrConflict (ErrChanged: it has been changed or deleted since).
	UpdateConversation(ctx context.Context, c *Conversation) error
	// DeleteConversation deletes what c was read as, and its messages: those that are
	// added meanwhile too. One of the same id that is inserted later has none of them.
	// Kinds: ErrConflict (ErrChanged).
	DeleteConversation(ctx context.Context, c *Conversation) error
	// FindConversation reads one. Kinds: ErrNotExist.
	FindConversation(ctx context.Context, account, id string) (*Conversation, error)
	// Conversations reads those of an account, sorted by id.
	Conversations(ctx context.Context, account string, page Page) ([]*Conversation, error)
	// RunningTurns reads the conversations of all accounts that have a turn, sorted by
	// account and id. It may miss a turn that has just begun, where the implementation
	// says so; one that is over it never has.
	RunningTurns(ctx context.Context) ([]*Conversation, error)

	// AddMessage adds m to its conversation, and counts it there, which changes Updated
	// and not Rev. One whose key the conversation has already is left as it is, and not
	// counted: what failed can be added again.
	//
	// Messages have an order, and their times are in it. One whose time is not after that
	// of the newest is kept with the microsecond after that: so those that were given
	// equal times are in the order in which they were added, and one from a machine whose
	// clock is behind comes last. The Time of m is set to the one that it is kept with.
	// Kinds: ErrNotExist (of the conversation).
	AddMessage(ctx context.Context, m *agent.Message) error
	// Messages reads the newest ones of a conversation, the oldest of them first. Kinds:
	// ErrNotExist (of the conversation, or of the message of page.After).
	Messages(ctx context.Context, account, conversation string, page Page) ([]*agent.Message, error)
	// AddUsage adds u, which is what a turn used, to the tokens of a conversation; the
	// number of the turn is its Turns. Those of a turn are added once: nothing is added
	// for one that is not after the last one that was. Rev is not changed. Kinds:
	// ErrNotExist.
	AddUsage(ctx context.Context, account, conversation string, turn int64, u agent.TokenUsage) error

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

	// Close gives up what is held; all other calls are ErrUnavailable from then on. A
	// second one does nothing.
	Close() error
}
