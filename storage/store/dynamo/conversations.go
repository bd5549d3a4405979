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
	attrSaved   = "saved" // time of the newest message
	// attrBirth distinguishes a conversation from earlier ones of the same id, whose messages it does not have.
	attrBirth = "birth"
	// attrLast is the newest time that was given to a message. attrPending has the messages that are about to be
	// added, with their times.
	attrLast    = "last"
	attrPending = "pending"
	attrCounted = "counted" // number of the last turn whose tokens are counted
	attrRunning = "running" // set while a turn runs; key of the index
)

// Attributes of stats, turns and tokens.
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

func conversationRef(account, id string) ref { return ref{conversationsTable, account, id} }

// conversationItem returns the attributes that an update writes: all but the stats.
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
	stats := f.subFields(attrStats)
	c := &store.Conversation{
		Conversation: agent.Conversation{
			ID: f.textField(attrID), Account: f.textField(attrAccount), Organization: f.textField(attrOrganization), Agent: f.textField(attrAgent),
			Template: f.textField(attrTemplate), Sandbox: f.textField(attrSandbox),
			Stats: agent.Stats{
				MessagesExchanged: stats.numberField(attrMessages), InputTokens: stats.numberField(attrTotalInput),
				OutputTokens: stats.numberField(attrTotalOutput), CacheTokens: stats.numberField(attrTotalCache),
			},
			Created: f.timeField(attrCreated), Updated: f.timeField(attrUpdated),
		},
		Until: f.timeField(attrUntil), Turns: f.numberField(attrTurns), Rev: f.numberField(attrRev),
	}
	if saved := f.timeField(attrSaved); saved.After(c.Updated) {
		c.Updated = saved
	}
	if f.hasField(attrTurn) {
		t := f.subFields(attrTurn)
		c.Turn = &agent.Turn{ID: t.textField(attrID), Server: t.textField(attrServer), Sandbox: t.textField(attrSandbox), Process: t.textField(attrProcess), Raw: t.boolField(attrRaw), Started: t.timeField(attrStarted)}
		c.Caller = t.textField(attrCaller)
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
	rev, err := s.insertRecord(ctx, conversationRef(c.Account, c.ID), it)
	if err != nil {
		return s.wrapError(ctx, op, c.ID, err)
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
	e.setFields(conversationItem(c))
	if err := s.changeRecord(ctx, conversationRef(c.Account, c.ID), c.Rev, &e); err != nil {
		return s.wrapError(ctx, op, c.ID, err)
	}
	c.Rev++
	return nil
}

// DeleteConversation implements store.Conversations. The conversation disappears at once; its messages are removed
// afterwards. If the call is interrupted, a second call returns ErrConflict and removes the rest.
func (s *Store) DeleteConversation(ctx context.Context, c *store.Conversation) error {
	err := s.deleteRecord(ctx, conversationRef(c.Account, c.ID), c.Rev, attrRunning)
	return s.wrapError(ctx, "delete conversation", c.ID, err)
}

// FindConversation implements store.Conversations.
func (s *Store) FindConversation(ctx context.Context, account, id string) (*store.Conversation, error) {
	const op = "find conversation"
	it, err := s.findRecord(ctx, conversationRef(account, id))
	if err == nil && it == nil {
		err = errNoConversation()
	}
	if err != nil {
		return nil, s.wrapError(ctx, op, id, err)
	}
	c, err := readConversation(fieldsOf(it))
	return c, s.wrapError(ctx, op, id, err)
}

func errNoConversation() error {
	return atoll.Errorf("", "", atoll.ErrNotExist, "no such conversation")
}

// Conversations implements store.Conversations.
func (s *Store) Conversations(ctx context.Context, account string, page store.Page) (all []*store.Conversation, err error) {
	const op = "conversations"
	if err := store.CheckPage(op, page); err != nil {
		return nil, err
	}
	err = s.listRecords(ctx, conversationsTable, "", account, page, func(f fields) error {
		c, err := readConversation(f)
		all = append(all, c)
		return err
	})
	if err != nil {
		return nil, s.wrapError(ctx, op, "", err)
	}
	return all, nil
}

// RunningTurns implements store.Conversations. Its index is updated with a delay, so it may miss a turn that has just
// begun.
func (s *Store) RunningTurns(ctx context.Context) ([]*store.Conversation, error) {
	const op = "conversations"
	var all []*store.Conversation
	in := &dynamodb.ScanInput{TableName: aws.String(s.prefix + conversationsTable), IndexName: aws.String(runningIndex)}
	for {
		out, err := s.client.Scan(ctx, in)
		if err != nil {
			return nil, s.wrapError(ctx, op, "", err)
		}
		for _, it := range out.Items {
			f := fieldsOf(it)
			c, err := s.FindConversation(ctx, f.textField(attrAccount), f.textField(attrID))
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
	// The index may have had a conversation twice, if a turn ended and another one began meanwhile.
	return slices.CompactFunc(all, func(a, b *store.Conversation) bool { return a.Account == b.Account && a.ID == b.ID }), nil
}

// AddUsage implements store.Conversations.
func (s *Store) AddUsage(ctx context.Context, account, conversation string, turn int64, u agent.TokenUsage) error {
	return s.wrapError(ctx, "add usage", conversation, s.addUsage(ctx, conversationRef(account, conversation), turn, u))
}

func (s *Store) addUsage(ctx context.Context, r ref, turn int64, u agent.TokenUsage) error {
	if !r.isValid() {
		return cmp.Or(s.checkUsable(ctx), errNoConversation())
	}
	var e expr
	e.requireAbsent(attrGone)
	e.conds = append(e.conds, e.namePlaceholder(attrCounted)+" < "+e.valuePlaceholder(numberOf(turn)))
	e.addNumber(u.Input, attrStats, attrTotalInput)
	e.addNumber(u.Output, attrStats, attrTotalOutput)
	e.addNumber(u.Cache, attrStats, attrTotalCache)
	e.setField(numberOf(turn), attrCounted)
	if _, err := s.updateItem(ctx, r.table, r.account, r.id, &e); !isRefused(err) {
		return err
	}
	it, err := s.findRecord(ctx, r)
	if err == nil && it == nil {
		err = errNoConversation()
	}
	return err // nil if the tokens have been added, also if the answer was lost
}
