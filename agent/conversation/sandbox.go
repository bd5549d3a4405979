package conversation

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A sandbox is an open sandbox of an agent: its record, its template, its object storage and its
// instance at the provider.
type sandbox struct {
	service      *Service
	template     *template.Template
	conversation agent.Conversation // linked with the sandbox; without an ID if there is none
	record       *store.AgentSandbox
	instance     atoll.Sandbox // nil until it is found or created
	place        *Storage      // nil without object storage
	policy       template.Policy

	turn     int64    // the number of the running turn; 0 if none runs
	undo     func()   // takes back the creation or the link of the sandbox
	warnings []string // what is missing for its removal; only with removeAccess and forceAccess
}

// A turnStore is the store for hooks. It implements hooks.Messages, and counts the tokens of one
// turn once.
type turnStore struct {
	store.Conversations
	turn int64
}

// AddUsage implements hooks.Messages.
func (t turnStore) AddUsage(ctx context.Context, account, conversation string, u agent.TokenUsage) error {
	return t.Conversations.AddUsage(ctx, account, conversation, t.turn, u)
}

// openSandbox opens the sandbox of a record, without its instance. c is the conversation that
// the sandbox is linked with.
func (s *Service) openSandbox(ctx context.Context, tpl *template.Template, c *agent.Conversation, record *store.AgentSandbox) (*sandbox, error) {
	sb := &sandbox{service: s, template: tpl, conversation: *c, record: record}
	at, err := tpl.Place(sb.templateNames(), s.opts.Store)
	if err != nil {
		return nil, err
	}
	if sb.policy, err = tpl.PolicyFor(at != ""); err != nil || at == "" {
		return sb, err
	}
	sb.place, err = s.opts.Open(ctx, at)
	return sb, err
}

// pushesFiles reports whether the files of the sandbox are pushed after each turn, and before
// its end.
func (sb *sandbox) pushesFiles() bool { return sb.place != nil && sb.policy == template.PolicySynced }

// templateNames returns the values for a template's patterns. A sandbox without a conversation
// uses its own id in place of the conversation's.
func (sb *sandbox) templateNames() template.Names {
	conversation := cmp.Or(sb.conversation.ID, sb.record.ID)
	return template.Names{Account: sb.conversation.Account, Agent: sb.conversation.Agent, Conversation: conversation, Sandbox: sb.record.ID}
}

// hookData returns the input of hooks.
func (sb *sandbox) hookData() *hooks.HookData {
	info := sb.record.Sandbox
	d := &hooks.HookData{
		ConversationID: sb.conversation.ID, Account: sb.conversation.Account, Agent: sb.conversation.Agent, SandboxInfo: &info, Sandbox: sb.instance,
	}
	d.Services.Messages, d.Services.Log = turnStore{sb.service.store, sb.turn}, sb.service.log
	d.Services.InitFromS3, d.Services.NoPush = sb.template.InitFromS3, !sb.pushesFiles()
	if sb.place != nil {
		d.Services.Files = sb
	}
	return d
}

// An access is the way in which an operation uses a sandbox.
type access int

const (
	readAccess   access = iota // the record and the object storage; turns may run meanwhile
	liveAccess                 // also the instance, which must exist; no turn runs meanwhile
	removeAccess               // also the instance, if it exists, even without its template; no turn runs meanwhile
	forceAccess                // as removeAccess, even if the object storage cannot be opened
)

// withSandbox runs an operation on a sandbox of the caller: it opens the sandbox for the access,
// and calls do. Except for readAccess, it first claims the sandbox, and do runs to its end even
// if ctx ends.
func (s *Service) withSandbox(ctx context.Context, op, id string, a access, do func(ctx context.Context, sb *sandbox) error) error {
	if a == readAccess {
		record, err := s.findSandbox(ctx, id)
		if err != nil {
			return err
		}
		return s.useSandbox(ctx, op, conversationOf(record), record, a, do)
	}
	return s.claimSandbox(ctx, id, func(ctx context.Context, c *agent.Conversation, record *store.AgentSandbox) error {
		return s.useSandbox(ctx, op, c, record, a, do)
	})
}

// useSandbox opens a sandbox for the access, and calls do. Its caller has claimed the sandbox, or
// needs only readAccess. c is the conversation that the sandbox is linked with.
func (s *Service) useSandbox(ctx context.Context, op string, c *agent.Conversation, record *store.AgentSandbox, a access, do func(ctx context.Context, sb *sandbox) error) error {
	tpl, lost := s.opts.Templates.Get(record.Template, record.Agent)
	if lost != nil {
		if a != removeAccess && a != forceAccess {
			return lost
		}
		lost = fmt.Errorf("nothing was pushed, no hook ran and its volume is kept: %w", lost)
		tpl = &template.Template{Name: record.Template, Policy: template.PolicyPersistent}
	}
	sb, err := s.openSandbox(ctx, tpl, c, record)
	switch {
	case err != nil && a == removeAccess && sb != nil && sb.policy != template.PolicySynced: // nothing has to be pushed
		lost = errors.Join(lost, fmt.Errorf("hooks had no object storage: %w", err))
	case err != nil && a == removeAccess:
		return pushError(record.ID, err)
	case err != nil && a == forceAccess:
		lost = errors.Join(lost, fmt.Errorf("nothing was pushed and its volume is kept: %w", err))
		sb, err = &sandbox{service: s, template: tpl, conversation: *c, record: record, policy: template.PolicyPersistent}, nil
	case err != nil:
		return err
	}
	if lost != nil {
		sb.warnings = append(sb.warnings, errorText(lost))
	}
	if a != readAccess {
		if sb.instance, err = sb.findInstance(ctx); err != nil {
			return err
		}
	}
	if a == liveAccess && sb.instance == nil {
		return atoll.Errorf(op, record.ID, atoll.ErrNotFound, "the sandbox is gone: the next prompt creates it again")
	}
	return do(ctx, sb)
}

// claimSandbox calls do with the record of a sandbox of the caller. No turn runs in the sandbox
// meanwhile, and none can begin: a sandbox with a conversation is claimed by a turn, and any
// other by its lock. If ctx ends, do continues to its end; claimSandbox waits for that only if
// the sandbox has no conversation.
func (s *Service) claimSandbox(ctx context.Context, id string, do func(ctx context.Context, c *agent.Conversation, record *store.AgentSandbox) error) error {
	record, c, err := s.findLinked(ctx, id)
	if err != nil {
		return err
	}
	if c == nil {
		unlock, err := s.sandboxLocks.Lock(ctx, accountKey(record.Account, record.ID))
		if err != nil {
			return err
		}
		defer unlock()
		if record, c, err = s.findLinked(ctx, id); err != nil { // a prompt may have linked it meanwhile
			return err
		}
	}
	if c == nil {
		return do(context.WithoutCancel(ctx), conversationOf(record), record)
	}
	return s.withConversation(ctx, c, record.ID, func(ctx context.Context, t *turn) error {
		record, err := s.store.FindSandbox(ctx, record.Account, record.ID) // the last turn may have changed it
		if err != nil {
			return err
		}
		return do(ctx, &t.conversation, record)
	})
}

// conversationOf returns the conversation of a sandbox, as far as the sandbox's record knows it.
func conversationOf(record *store.AgentSandbox) *agent.Conversation {
	return &agent.Conversation{ID: record.Conversation, Account: record.Account, Organization: record.Organization, Agent: record.Agent, Template: record.Template}
}

// findLinked reads the record of a sandbox of the caller, and of its conversation, nil if there
// is none.
func (s *Service) findLinked(ctx context.Context, id string) (*store.AgentSandbox, *store.Conversation, error) {
	record, err := s.findSandbox(ctx, id)
	if err != nil || record.Conversation == "" {
		return record, nil, err
	}
	c, err := s.store.FindConversation(ctx, record.Account, record.Conversation)
	if atoll.KindOf(err) == atoll.ErrNotExist { // the conversation was deleted with its sandbox
		return record, nil, nil
	}
	return record, c, err
}

// errNoPlace returns the error of a sandbox without object storage.
func errNoPlace(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "no object storage for its files: set sync.store, or the bucket of its template")
}

// updateSandbox changes a sandbox's record. It calls change again if somebody else has changed
// the record in the meantime.
func (s *Service) updateSandbox(ctx context.Context, account, id string, change func(*store.AgentSandbox)) error {
	for {
		record, err := s.store.FindSandbox(ctx, account, id)
		if err != nil {
			return err
		}
		change(record)
		if err := s.store.UpdateSandbox(ctx, record); !errors.Is(err, store.ErrChanged) {
			return err
		}
	}
}

// unlinkSandbox removes the link from a sandbox to the conversation c.
func (s *Service) unlinkSandbox(ctx context.Context, c *agent.Conversation, sandboxID string) error {
	record, err := s.store.FindSandbox(ctx, c.Account, sandboxID)
	if atoll.KindOf(err) == atoll.ErrNotExist || err == nil && record.Conversation != c.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return s.updateSandbox(ctx, c.Account, sandboxID, func(record *store.AgentSandbox) {
		if record.Conversation == c.ID {
			record.Conversation = ""
		}
	})
}
