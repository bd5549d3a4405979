// Package conversation is where prompts become an agent's work: each conversation has
// a sandbox of its own, made from a template, in which the agent runs; what it says is
// streamed to whoever listens and kept as messages; and what it did to its files is
// pushed to object storage after each turn, from where a sandbox that takes the place
// of a lost one gets it.
//
// A turn belongs to the service, not to the client that began it: it goes on, and is
// saved, whoever leaves. What must be known to finish it is written down before it is
// needed, so that the turn of a program that was killed is finished by the next one.
//
// All calls are for the account of their context, see auth.AccountFrom: what is
// another one's is not there.
package conversation

import (
	"cmp"
	"context"
	"errors"
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

// A Place is where the files and the history of one conversation are kept.
type Place struct {
	Remote *filesync.Remote // versions of its files
	Bucket objectstore.Bucket
	Prefix string // of all keys there, without a slash at its end
}

// Options are what a Service gets. Store, Stale and Log may be left out.
type Options struct {
	Templates *template.Set
	// Server names this program to others with the same store: no two that run at
	// once may have the same, and one that takes the place of another one should.
	Server string
	// Store is where versions are kept by templates that do not say it, in the forms of
	// sync.store; "" is nowhere. Open opens a place below it, or below a template's own:
	// it is good until the Service is closed.
	Store string
	Open  func(ctx context.Context, at string) (*Place, error)
	// Stale is how old the state of a directory may be before its versions are asked
	// again; 0 means filesync.DefaultStale.
	Stale time.Duration
	// Hooks runs the hooks of templates.
	Hooks *hooks.Runner
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger
	// Lease is how long the turn of a server is its own after it last said that it runs, of
	// which it says it three times; 0 means 30 seconds. Then another one finishes it.
	Lease time.Duration

	step  func(name string) // for tests: called after each step, with its name
	lease time.Duration     // for tests: Lease
}

// lease is Options.Lease if that is not said.
const lease = 30 * time.Second

// A Service keeps conversations. All methods may be called at once.
type Service struct {
	provider atoll.Provider
	store    store.Conversations
	opts     Options
	log      *slog.Logger
	locks    keymutex.Locks // of sandboxes

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	turns  map[string]*turn // by account and conversation: those that run here, and the last ones
	ours   map[string]bool  // ids of turns that run here, or are about to
}

// New returns a service for conversations that are written down in s, with sandboxes of
// p. Both stay the caller's, to be closed after it. It finishes the turns that earlier
// programs of the same name have left, and looks for those of others that have died.
func New(p atoll.Provider, s store.Conversations, opts Options) *Service {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.step == nil {
		opts.step = func(string) {}
	}
	opts.lease = cmp.Or(opts.lease, opts.Lease, lease)
	opts.Stale = cmp.Or(opts.Stale, filesync.DefaultStale)
	v := &Service{provider: p, store: s, opts: opts, log: opts.Log, turns: map[string]*turn{}, ours: map[string]bool{}}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.work.Go(v.care)
	return v
}

// Close ends the streams of clients with ErrUnavailable, and returns when nothing is
// left that the service has started. Agents go on in their sandboxes, where these
// outlive the program: the next one finds them, and finishes their turns.
func (v *Service) Close() error {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.cancel()
	v.work.Wait()
	return nil
}

// errClosing is why a turn is left to another program.
var errClosing = atoll.Errorf("conversation", "", atoll.ErrUnavailable, "the server is closing: the agent may go on, and GET .../stream on the next server shows what it does")

// key is that of a conversation, or of a sandbox, in locks and maps.
func key(account, id string) string { return account + "/" + id }

// Conversation returns one. Kinds: ErrNotExist, ErrInvalid.
func (v *Service) Conversation(ctx context.Context, id string) (agent.Conversation, error) {
	c, err := v.find(ctx, id)
	if err != nil {
		return agent.Conversation{}, err
	}
	return c.Conversation, nil
}

// find reads a conversation of the caller's.
func (v *Service) find(ctx context.Context, id string) (*store.Conversation, error) {
	id, err := agent.ConversationID(id)
	if err != nil {
		return nil, err
	}
	return v.store.FindConversation(ctx, auth.AccountFrom(ctx).Name, id)
}

// The bounds of lists.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// page checks what a list is to have.
func page(after string, limit int) (store.Page, error) {
	if limit == 0 {
		limit = DefaultPage
	}
	if limit < 1 || limit > MaxPage {
		return store.Page{}, atoll.Errorf("list", "", atoll.ErrInvalid, "limit %d: must be within 1..%d", limit, MaxPage)
	}
	return store.Page{After: after, Limit: limit}, nil
}

// Conversations lists those of the account, sorted by id, from the one after the one
// with the id after. limit 0 means DefaultPage.
func (v *Service) Conversations(ctx context.Context, after string, limit int) ([]agent.Conversation, error) {
	p, err := page(after, limit)
	if err != nil {
		return nil, err
	}
	list, err := v.store.Conversations(ctx, auth.AccountFrom(ctx).Name, p)
	if err != nil {
		return nil, err
	}
	all := make([]agent.Conversation, len(list))
	for i, c := range list {
		all[i] = c.Conversation
	}
	return all, nil
}

// maxAnswer is how many bytes of messages are read for one answer, about.
const maxAnswer = 32 << 20

// Messages returns the newest messages of a conversation, the oldest of them first:
// those before the one with the key before, if that is given. limit 0 means DefaultPage.
// There are fewer where they are long: none are only where there are no more.
func (v *Service) Messages(ctx context.Context, id, before string, limit int) ([]*agent.Message, error) {
	p, err := page(before, limit)
	if err != nil {
		return nil, err
	}
	limit = p.Limit
	c, err := v.find(ctx, id)
	if err != nil {
		return nil, err
	}
	var all []*agent.Message
	size := 0
	for step := 16; len(all) < limit && size < maxAnswer; {
		p.Limit = min(step, limit-len(all))
		some, err := v.store.Messages(ctx, c.Account, c.ID, p)
		if err != nil {
			return nil, err
		}
		all = append(some, all...)
		if len(some) < p.Limit {
			break
		}
		before := size
		for _, m := range some {
			size += sizeOf(m)
		}
		if p.After = some[0].Key; size-before < 1<<20 {
			step = min(4*step, MaxPage)
		} else {
			step = 16
		}
	}
	return all, nil
}

// sizeOf is how long the texts of a message are.
func sizeOf(m *agent.Message) int {
	n := len(m.Body)
	for i := range m.ToolCalls {
		c := &m.ToolCalls[i]
		n += len(c.Input) + len(c.Output) + len(c.Error)
	}
	return n
}

// DeleteConversation forgets a conversation and its messages, also where they are beside
// its files, and with terminate deletes its sandbox as DeleteSandbox does, before.
// Versions of files that were pushed stay. Of one whose template is not there any more
// only what is known here is forgotten, and that is returned. Kinds: ErrNotExist,
// ErrConflict (a turn runs).
func (v *Service) DeleteConversation(ctx context.Context, id string, terminate bool) error {
	c, err := v.find(ctx, id)
	if err != nil {
		return err
	}
	return v.alone(ctx, c, c.Sandbox, func(ctx context.Context, t *turn) (failed error) {
		if c := &t.conversation; c.Sandbox != "" {
			_, lost := v.opts.Templates.Get(c.Template, c.Agent)
			if lost != nil {
				lost = atoll.Errorf("delete", c.ID, atoll.KindOf(lost), "what is beside its files was not deleted: %w", lost)
			} else if err := v.erase(ctx, c); err != nil {
				return err
			}
			failed = errors.Join(lost, v.part(ctx, c, terminate))
		}
		return errors.Join(failed, t.forget())
	})
}

// part ends what a conversation has to do with its sandbox, or that sandbox.
func (v *Service) part(ctx context.Context, c *agent.Conversation, terminate bool) error {
	if !terminate {
		return v.unlink(ctx, c, c.Sandbox)
	}
	x, err := v.store.FindSandbox(ctx, c.Account, c.Sandbox)
	if atoll.KindOf(err) == atoll.ErrNotExist || err == nil && x.Conversation != c.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return v.with(ctx, "delete", c, x, false, (*box).end)
}

// unlink frees the sandbox of a conversation.
func (v *Service) unlink(ctx context.Context, c *agent.Conversation, sandbox string) error {
	x, err := v.store.FindSandbox(ctx, c.Account, sandbox)
	if atoll.KindOf(err) == atoll.ErrNotExist || err == nil && x.Conversation != c.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return v.changeSandbox(ctx, c.Account, sandbox, func(x *store.AgentSandbox) {
		if x.Conversation == c.ID {
			x.Conversation = ""
		}
	})
}

// busy is the error of who comes while a turn runs.
func busy(op string, c *store.Conversation) error {
	return atoll.Errorf(op, c.ID, atoll.ErrConflict, "turn %s runs since %s on server %s: wait for its end, follow it with GET /conversation/%s/stream, or cancel it",
		c.Turn.ID, c.Turn.Started.UTC().Format(time.RFC3339), c.Turn.Server, c.ID)
}
