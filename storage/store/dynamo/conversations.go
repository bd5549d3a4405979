package dynamo

import (
	"cmp"
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Attributes of a conversation.
const (
	attrSandbox = "sandbox_id"
	attrTurn    = "turn"
	attrUntil   = "until"
	attrTurns   = "turns"
	attrUpdated = "updated"
	attrStats   = "stats"
	attrSaved   = "saved" // the time of the newest message
	// attrBirth tells a conversation from others that have had its id: their messages are
	// not its own.
	attrBirth = "birth"
	// attrLast is the newest time that a message was given, and attrPending which messages
	// are about to be added, with the time of each.
	attrLast    = "last"
	attrPending = "pending"
	attrCounted = "counted" // the number of the last turn whose tokens are
	attrRunning = "running" // while there is a turn; for the index
)

// Attributes of its stats, of turns and of tokens.
const (
	attrMessages     = "messages_exchanged"
	attrTotalInput   = "total_input_tokens"
	attrTotalOutput  = "total_output_tokens"
	attrTotalCache   = "total_cache_tokens"
	attrServer       = "server"
	attrProcess      = "process_id"
	attrRaw          = "raw"
	attrStarted      = "started"
	attrCaller       = "caller"
	attrInputTokens  = "input_tokens"
	attrOutputTokens = "output_tokens"
	attrCacheTokens  = "cache_tokens"
)

func refOf(account, id string) ref { return ref{conversationsTable, account, id} }

// conversationItem is what an update writes, too: of a conversation all but its stats.
func conversationItem(c *store.Conversation) item {
	it := item{
		attrOrganization: textOf(c.Organization), attrAgent: textOf(c.Agent), attrTemplate: textOf(c.Template), attrSandbox: textOf(c.Sandbox),
		attrUntil: timeOf(c.Until), attrTurns: numberOf(c.Turns), attrCreated: timeOf(c.Created), attrUpdated: timeOf(c.Updated),
		attrTurn: nil, attrRunning: nil,
	}
	if t := c.Turn; t != nil {
		it[attrTurn] = mapOf(item{
			attrID: textOf(t.ID), attrServer: textOf(t.Server), attrSandbox: textOf(t.Sandbox), attrProcess: textOf(t.Process), attrRaw: flagOf(t.Raw), attrStarted: timeOf(t.Started),
			attrCaller: textOf(c.Caller),
		})
		it[attrRunning] = textOf(c.Account + "/" + c.ID)
	}
	return it
}

func readConversation(f fields) (*store.Conversation, error) {
	stats := f.sub(attrStats)
	c := &store.Conversation{
		Conversation: agent.Conversation{
			ID: f.text(attrID), Account: f.text(attrAccount), Organization: f.text(attrOrganization), Agent: f.text(attrAgent),
			Template: f.text(attrTemplate), Sandbox: f.text(attrSandbox),
			Stats: agent.Stats{
				MessagesExchanged: stats.number(attrMessages), InputTokens: stats.number(attrTotalInput),
				OutputTokens: stats.number(attrTotalOutput), CacheTokens: stats.number(attrTotalCache),
			},
			Created: f.time(attrCreated), Updated: f.time(attrUpdated),
		},
		Until: f.time(attrUntil), Turns: f.number(attrTurns), Rev: f.number(attrRev),
	}
	if saved := f.time(attrSaved); saved.After(c.Updated) {
		c.Updated = saved
	}
	if f.has(attrTurn) {
		t := f.sub(attrTurn)
		c.Turn = &agent.Turn{ID: t.text(attrID), Server: t.text(attrServer), Sandbox: t.text(attrSandbox), Process: t.text(attrProcess), Raw: t.flag(attrRaw), Started: t.time(attrStarted)}
		c.Caller = t.text(attrCaller)
	}
	return c, *f.err
}

// InsertConversation implements store.Conversations.
func (s *Store) InsertConversation(ctx context.Context, c *store.Conversation) error {
	const op = "insert conversation"
	if err := store.CheckConversation(op, c); err != nil {
		return err
	}
	it := conversationItem(c)
	it[attrBirth], it[attrPending] = textOf(atoll.NewID()), mapOf(item{})
	it[attrCounted] = numberOf(0)
	it[attrStats] = mapOf(item{
		attrMessages: numberOf(c.Stats.MessagesExchanged), attrTotalInput: numberOf(c.Stats.InputTokens),
		attrTotalOutput: numberOf(c.Stats.OutputTokens), attrTotalCache: numberOf(c.Stats.CacheTokens),
	})
	rev, err := s.insert(ctx, refOf(c.Account, c.ID), it)
	if err != nil {
		return s.fail(ctx, op, c.ID, err)
	}
	c.Rev = rev
	return nil
}

// UpdateConversation implements store.Conversations.
func (s *Store) UpdateConversation(ctx context.Context, c *store.Conversation) error {
	const op = "update conversation"
	if err := store.CheckConversation(op, c); err != nil {
		return err
	}
	var e expr
	e.setAll(conversationItem(c))
	if err := s.change(ctx, refOf(c.Account, c.ID), c.Rev, &e); err != nil {
		return s.fail(ctx, op, c.ID, err)
	}
	c.Rev++
	return nil
}

// DeleteConversation implements store.Conversations. The conversation is gone at once,
// its messages are removed then. Who is cut short and asks again is told ErrConflict,
// and has the rest removed.
func (s *Store) DeleteConversation(ctx context.Context, c *store.Conversation) error {
	err := s.erase(ctx, refOf(c.Account, c.ID), c.Rev, attrRunning)
	return s.fail(ctx, "delete conversation", c.ID, err)
}

// FindConversation implements store.Conversations.
func (s *Store) FindConversation(ctx context.Context, account, id string) (*store.Conversation, error) {
	const op = "find conversation"
	it, err := s.find(ctx, refOf(account, id))
	if err == nil && it == nil {
		err = errNoConversation()
	}
	if err != nil {
		return nil, s.fail(ctx, op, id, err)
	}
	c, err := readConversation(fieldsOf(it))
	return c, s.fail(ctx, op, id, err)
}

func errNoConversation() error {
	return atoll.Errorf("", "", atoll.ErrNotExist, "there is no such conversation")
}

// Conversations implements store.Conversations.
func (s *Store) Conversations(ctx context.Context, account string, page store.Page) (all []*store.Conversation, err error) {
	const op = "conversations"
	if err := store.CheckPage(op, page); err != nil {
		return nil, err
	}
	err = s.list(ctx, conversationsTable, "", account, page, func(f fields) error {
		c, err := readConversation(f)
		all = append(all, c)
		return err
	})
	if err != nil {
		return nil, s.fail(ctx, op, "", err)
	}
	return all, nil
}

// RunningTurns implements store.Conversations. It asks an index that is a moment late:
// it may miss a turn that has just begun.
func (s *Store) RunningTurns(ctx context.Context) ([]*store.Conversation, error) {
	const op = "conversations"
	var all []*store.Conversation
	in := &dynamodb.ScanInput{TableName: aws.String(s.prefix + conversationsTable), IndexName: aws.String(runningIndex)}
	for {
		out, err := s.client.Scan(ctx, in)
		if err != nil {
			return nil, s.fail(ctx, op, "", err)
		}
		for _, it := range out.Items {
			f := fieldsOf(it)
			c, err := s.FindConversation(ctx, f.text(attrAccount), f.text(attrID))
			switch {
			case atoll.KindOf(err) == atoll.ErrNotExist:
			case err != nil:
				return nil, err
			case c.Turn != nil:
				all = append(all, c)
			}
		}
		if len(out.LastEvaluatedKey) == 0 {
			break
		}
		in.ExclusiveStartKey = out.LastEvaluatedKey
	}
	slices.SortFunc(all, func(a, b *store.Conversation) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.ID, b.ID))
	})
	// The index may have had one twice, while its turn ended and another began.
	return slices.CompactFunc(all, func(a, b *store.Conversation) bool { return a.Account == b.Account && a.ID == b.ID }), nil
}

// AddUsage implements store.Conversations.
func (s *Store) AddUsage(ctx context.Context, account, conversation string, turn int64, u agent.TokenUsage) error {
	return s.fail(ctx, "add usage", conversation, s.addUsage(ctx, refOf(account, conversation), turn, u))
}

func (s *Store) addUsage(ctx context.Context, r ref, turn int64, u agent.TokenUsage) error {
	if !r.valid() {
		return cmp.Or(s.ask(ctx), errNoConversation())
	}
	var e expr
	e.absent(attrGone)
	e.conds = append(e.conds, e.name(attrCounted)+" < "+e.value(numberOf(turn)))
	e.add(u.Input, attrStats, attrTotalInput)
	e.add(u.Output, attrStats, attrTotalOutput)
	e.add(u.Cache, attrStats, attrTotalCache)
	e.set(numberOf(turn), attrCounted)
	if _, err := s.update(ctx, r.table, r.account, r.id, &e); !isRefused(err) {
		return err
	}
	it, err := s.find(ctx, r)
	if err == nil && it == nil {
		err = errNoConversation()
	}
	return err // nil if they have been added, here too when the answer was lost
}
