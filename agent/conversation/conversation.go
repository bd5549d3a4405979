// Package conversation runs agents in sandboxes. Each conversation has a sandbox of its own,
// created from a template. A prompt begins a turn: the agent runs in the sandbox, clients read
// its events as a stream, and its messages are saved in the store. After each turn, the files
// of the sandbox are pushed to object storage. If a sandbox is lost, its replacement pulls
// them from there.
//
// A turn belongs to the service, not to the client that began it: it continues, and is saved,
// when the client disconnects. The service saves the state of a turn before it acts on it, so
// if its program is killed, the next program finishes the turn.
//
// Each call is for the account of its context, see auth.AccountFrom. Conversations and
// sandboxes of other accounts do not exist for it.
package conversation

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A Storage is the object storage of one conversation: the versions of its files, and its history.
type Storage struct {
	Remote *filesync.Remote // versions of its files
	Bucket objectstore.Bucket
	Prefix string // of all keys, without a trailing slash
}

// Options configure a Service. Store, StaleAfter, Log and Lease are optional.
type Options struct {
	Templates *template.Set
	// Server is the name of this program among those that share the store. No two programs may
	// have the same name at the same time. A program that replaces another one should have
	// its name.
	Server string
	// Store is the default object storage of templates, in the forms of sync.store; "" means
	// none.
	Store string
	// Open opens a place below Store, or below the object storage of a template. The place
	// must be usable until the Service is closed.
	Open func(ctx context.Context, at string) (*Storage, error)
	// StaleAfter is the age at which a pull looks for a newer version of a directory; 0 means
	// filesync.DefaultStale.
	StaleAfter time.Duration
	// Hooks runs the hooks of templates.
	Hooks *hooks.Runner
	// Log gets the errors that no call returns; nil discards them.
	Log *slog.Logger
	// Lease is the time after which another server takes over a turn whose server no longer
	// renews its lease, which it does three times in that time; 0 means 30 seconds.
	Lease time.Duration

	onStep    func(name string) // for tests: called after each step with its name
	testLease time.Duration     // for tests: overrides Lease
}

// defaultLease is the default of Options.Lease.
const defaultLease = 30 * time.Second

// A Service manages conversations, and runs their turns. Its methods are safe for concurrent
// use.
type Service struct {
	provider     atoll.Provider
	store        store.Conversations
	opts         Options
	log          *slog.Logger
	leaseTime    time.Duration  // of turns
	sandboxLocks keymutex.Locks // by accountKey of the sandbox

	ctx        context.Context // ends at Close
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	mu     sync.Mutex
	closed bool
	turns  map[string]*turn // by accountKey of the conversation: the running ones, and the last ones
	owned  map[string]bool  // ids of the turns that this program runs, or is about to run
}

// New returns a service that stores conversations in the given store, and creates sandboxes with
// p. The caller still owns both, and closes them after the service. The service first finishes
// the turns that earlier programs with the same Server name left, and then watches for turns of
// servers that have died.
func New(p atoll.Provider, conversations store.Conversations, opts Options) *Service {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.onStep == nil {
		opts.onStep = func(string) {}
	}
	opts.StaleAfter = cmp.Or(opts.StaleAfter, filesync.DefaultStale)
	s := &Service{provider: p, store: conversations, opts: opts, log: opts.Log, leaseTime: cmp.Or(opts.testLease, opts.Lease, defaultLease), turns: map[string]*turn{}, owned: map[string]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.goroutines.Go(s.watchTurns)
	return s
}

// Close ends the streams of clients with ErrUnavailable, and returns when all goroutines of the
// service have ended. Agents continue in sandboxes that outlive the program: the next program
// finds them, and finishes their turns.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.goroutines.Wait()
	return nil
}

// errClosing is the error of a turn that a closing server leaves to another program.
var errClosing = atoll.Errorf("conversation", "", atoll.ErrUnavailable, "the server is closing: the agent may continue, read GET .../stream on the next server")

// accountKey returns the key of a conversation or a sandbox in locks and maps.
func accountKey(account, id string) string { return account + "/" + id }

// Conversation returns a conversation of the caller. Kinds: ErrNotExist, ErrInvalid.
func (s *Service) Conversation(ctx context.Context, id string) (agent.Conversation, error) {
	c, err := s.findConversation(ctx, id)
	if err != nil {
		return agent.Conversation{}, err
	}
	return c.Conversation, nil
}

// findConversation reads the record of a conversation of the caller.
func (s *Service) findConversation(ctx context.Context, id string) (*store.Conversation, error) {
	id, err := agent.ConversationID(id)
	if err != nil {
		return nil, err
	}
	return s.store.FindConversation(ctx, auth.AccountFrom(ctx).Name, id)
}

// Limits of lists.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// newPage checks the bounds of a list, and returns its page.
func newPage(after string, limit int) (store.Page, error) {
	if limit == 0 {
		limit = DefaultPage
	}
	if limit < 1 || limit > MaxPage {
		return store.Page{}, atoll.Errorf("list", "", atoll.ErrInvalid, "limit %d: must be within 1..%d", limit, MaxPage)
	}
	return store.Page{After: after, Limit: limit}, nil
}

// Conversations lists the conversations of the account, sorted by id. The list starts after the
// conversation with the id after. limit 0 means DefaultPage.
func (s *Service) Conversations(ctx context.Context, after string, limit int) ([]agent.Conversation, error) {
	p, err := newPage(after, limit)
	if err != nil {
		return nil, err
	}
	list, err := s.store.Conversations(ctx, auth.AccountFrom(ctx).Name, p)
	if err != nil {
		return nil, err
	}
	all := make([]agent.Conversation, len(list))
	for i, c := range list {
		all[i] = c.Conversation
	}
	return all, nil
}

// maxMessagesBytes limits the size of the messages in one answer, approximately.
const maxMessagesBytes = 32 << 20

// Messages returns the newest messages of a conversation, oldest first. If before is not empty,
// it returns only messages before the one with that key. limit 0 means DefaultPage. It returns
// fewer messages than limit if they are long, and none only if there are no more.
func (s *Service) Messages(ctx context.Context, id, before string, limit int) ([]*agent.Message, error) {
	p, err := newPage(before, limit)
	if err != nil {
		return nil, err
	}
	limit = p.Limit
	c, err := s.findConversation(ctx, id)
	if err != nil {
		return nil, err
	}
	var all []*agent.Message
	size := 0
	for step := 16; len(all) < limit && size < maxMessagesBytes; {
		p.Limit = min(step, limit-len(all))
		some, err := s.store.Messages(ctx, c.Account, c.ID, p)
		if err != nil {
			return nil, err
		}
		all = append(some, all...)
		if len(some) < p.Limit {
			break
		}
		before := size
		for _, m := range some {
			size += messageSize(m)
		}
		if p.After = some[0].Key; size-before < 1<<20 {
			step = min(4*step, MaxPage)
		} else {
			step = 16
		}
	}
	return all, nil
}

// messageSize returns the size of the texts of a message, in bytes.
func messageSize(m *agent.Message) int {
	n := len(m.Body)
	for i := range m.ToolCalls {
		c := &m.ToolCalls[i]
		n += len(c.Input) + len(c.Output) + len(c.Error)
	}
	return n
}
