package dynamo

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Attributes of a message.
const (
	attrConversation   = "conversation" // see collection
	attrKey            = "key"
	attrConversationID = "conversation_id"
	attrTimestamp      = "timestamp" // in microseconds
	attrTurnID         = "turn_id"
	attrRole           = "role"
	attrBody           = "body"
	attrTokens         = "tokens"
	attrToolCalls      = "tool_calls"
	attrParts          = "parts" // how many there are; their keys begin with that of the message, and its attrWrite
	attrData           = "data"  // of a part
)

// Attributes of a tool's call.
const (
	attrType   = "type"
	attrName   = "name"
	attrInput  = "input"
	attrOutput = "output"
	attrStatus = "status"
	attrError  = "error"
)

var roles = map[agent.Role]int64{agent.RoleUser: 1, agent.RoleAssistant: 2, agent.RoleTool: 3}

// collection is what all messages of a conversation have in common. Names have no slash.
func collection(account, id, birth string) string { return account + "/" + id + "/" + birth }

// messageItem is a message without its texts.
func messageItem(m *agent.Message, c claim, mark string) item {
	return item{
		attrConversation: textOf(collection(m.Account, m.Conversation, c.birth)), attrKey: textOf(m.Key), attrTimestamp: numberOf(c.time.UnixMicro()),
		attrAccount: textOf(m.Account), attrConversationID: textOf(m.Conversation), attrTurnID: textOf(m.Turn), attrRole: numberOf(roles[m.Role]),
		attrTokens: mapOf(item{
			attrInputTokens: numberOf(m.Tokens.Input), attrOutputTokens: numberOf(m.Tokens.Output), attrCacheTokens: numberOf(m.Tokens.Cache),
		}),
		attrWrite: textOf(mark),
	}
}

// setTexts adds the texts, for which there has to be room.
func setTexts(it item, m *agent.Message) {
	it[attrBody] = textOf(m.Body)
	if len(m.ToolCalls) == 0 {
		return
	}
	var calls types.AttributeValueMemberL
	for _, c := range m.ToolCalls {
		calls.Value = append(calls.Value, mapOf(item{
			attrID: textOf(c.ID), attrType: textOf(c.Type), attrName: textOf(c.Name), attrInput: textOf(string(c.Input)),
			attrOutput: textOf(c.Output), attrStatus: textOf(c.Status), attrError: textOf(c.Error),
		}))
	}
	it[attrToolCalls] = &calls
}

// readMessage reads a message, without those texts that are in parts.
func readMessage(f fields) (*agent.Message, error) {
	tokens := f.sub(attrTokens)
	m := &agent.Message{
		Key: f.text(attrKey), Conversation: f.text(attrConversationID), Account: f.text(attrAccount), Turn: f.text(attrTurnID),
		Body: f.text(attrBody), Time: f.time(attrTimestamp),
		Tokens: agent.TokenUsage{Input: tokens.number(attrInputTokens), Output: tokens.number(attrOutputTokens), Cache: tokens.number(attrCacheTokens)},
	}
	n := f.number(attrRole)
	for role, number := range roles {
		if number == n {
			m.Role = role
		}
	}
	if m.Role == "" {
		f.bad(attrRole)
	}
	for _, c := range f.list(attrToolCalls) {
		call := agent.ToolCall{
			ID: c.text(attrID), Type: c.text(attrType), Name: c.text(attrName), Output: c.text(attrOutput), Status: c.text(attrStatus), Error: c.text(attrError),
		}
		if c.has(attrInput) {
			call.Input = json.RawMessage(c.text(attrInput))
		}
		m.ToolCalls = append(m.ToolCalls, call)
	}
	return m, *f.err
}

// AddMessage implements store.Conversations.
func (s *Store) AddMessage(ctx context.Context, m *agent.Message) error {
	const op = "add message"
	if err := store.CheckMessage(op, m); err != nil {
		return err
	}
	at, err := s.addMessage(ctx, m)
	if err != nil {
		return s.fail(ctx, op, m.Key, err)
	}
	m.Time = at
	return nil
}

// addMessage returns the time with which the message is kept.
func (s *Store) addMessage(ctx context.Context, m *agent.Message) (time.Time, error) {
	r := refOf(m.Account, m.Conversation)
	if !r.valid() {
		return time.Time{}, cmp.Or(s.ask(ctx), errNoConversation())
	}
	c, err := s.claimTime(ctx, r, m.Key, m.Time)
	if err != nil {
		return time.Time{}, err
	}
	mark := atoll.NewID()
	kept, err := s.putMessage(ctx, m, c, mark)
	if err != nil {
		return time.Time{}, err
	}
	// It is there: what is still to do is not broken off.
	ctx, cancel := detached(ctx)
	defer cancel()
	if !kept.Equal(c.time) {
		return kept, s.unclaim(ctx, r, m.Key, c)
	}
	there, err := s.count(ctx, r, m.Key, c)
	if err != nil {
		return time.Time{}, err
	}
	if !there { // it was deleted, and this came too late for that
		if err := s.dropMessage(ctx, m, c, mark); err != nil {
			return time.Time{}, err
		}
		return time.Time{}, errNoConversation()
	}
	return c.time, nil
}

// putMessage puts a message, unless there is one with its key, and returns the time of
// the one that is there then.
func (s *Store) putMessage(ctx context.Context, m *agent.Message, c claim, mark string) (kept time.Time, err error) {
	it := messageItem(m, c, mark)
	parts, err := s.putTexts(ctx, it, m, c, mark)
	if err != nil {
		return time.Time{}, err
	}
	err = s.put(ctx, messagesTable, it)
	if err == nil {
		return c.time, nil
	}
	if !isRefused(err) {
		return time.Time{}, err // it may be there, and so may its parts: they are the conversation's
	}
	old, err := s.get(ctx, messagesTable, collection(m.Account, m.Conversation, c.birth), m.Key)
	if err != nil {
		return time.Time{}, err
	}
	if old == nil { // it has been removed since, with the conversation; who counts finds out
		return c.time, nil
	}
	f := fieldsOf(old)
	kept = f.time(attrTimestamp)
	if f.text(attrWrite) != mark {
		err = s.dropParts(ctx, m, c, parts)
	}
	return kept, cmp.Or(err, *f.err)
}

// dropMessage removes a message that was put with mark.
func (s *Store) dropMessage(ctx context.Context, m *agent.Message, c claim, mark string) error {
	if err := s.remove(ctx, messagesTable, collection(m.Account, m.Conversation, c.birth), m.Key, attrWrite, mark); err != nil {
		return err
	}
	return s.dropParts(ctx, m, c, partKeys(m, mark))
}

// sweep removes all messages of a conversation, and their parts.
func (s *Store) sweep(ctx context.Context, collection string) error {
	var q selection
	q.table = messagesTable
	q.e.equals(textOf(collection), attrConversation)
	q.fields = q.e.name(attrKey)
	var keys []string
	flush := func() error {
		all := keys
		keys = nil
		return s.removeAll(ctx, messagesTable, collection, all)
	}
	err := s.query(ctx, q, func(it item) error {
		keys = append(keys, fieldsOf(it).text(attrKey))
		if len(keys) < batch {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}

// Messages implements store.Conversations.
func (s *Store) Messages(ctx context.Context, account, conversation string, page store.Page) ([]*agent.Message, error) {
	const op = "messages"
	if err := store.CheckPage(op, page); err != nil {
		return nil, err
	}
	all, err := s.messages(ctx, refOf(account, conversation), page)
	if err != nil {
		return nil, s.fail(ctx, op, conversation, err)
	}
	return all, nil
}

func (s *Store) messages(ctx context.Context, r ref, page store.Page) ([]*agent.Message, error) {
	it, err := s.find(ctx, r)
	if err != nil {
		return nil, err
	}
	if it == nil {
		return nil, errNoConversation()
	}
	hash := collection(r.account, r.id, fieldsOf(it).text(attrBirth))
	q := selection{table: messagesTable, index: newestIndex, newest: true, limit: page.Limit}
	q.e.equals(textOf(hash), attrConversation)
	if page.After != "" {
		after, err := s.get(ctx, messagesTable, hash, page.After)
		if err != nil {
			return nil, err
		}
		if after == nil {
			return nil, atoll.Errorf("", "", atoll.ErrNotExist, "there is no message %q", page.After)
		}
		q.e.conds = append(q.e.conds, q.e.name(attrTimestamp)+" < "+q.e.value(after[attrTimestamp]))
	}
	var all []*agent.Message
	err = s.query(ctx, q, func(it item) error {
		f := fieldsOf(it)
		m, err := readMessage(f)
		if err == nil && f.has(attrParts) {
			err = s.readTexts(ctx, hash, f, m)
		}
		all = append(all, m)
		return err
	})
	slices.Reverse(all)
	return all, err
}
