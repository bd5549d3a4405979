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
	attrConversation   = "conversation" // see collectionKey
	attrKey            = "key"
	attrConversationID = "conversation_id"
	attrTimestamp      = "timestamp" // microseconds since 1970
	attrTurnID         = "turn_id"
	attrRole           = "role"
	attrBody           = "body"
	attrTokens         = "tokens"
	attrToolCalls      = "tool_calls"
	attrParts          = "parts" // number of parts; the key of a part begins with that of the message and its attrWrite
	attrData           = "data"  // content of a part
)

// Attributes of a tool call.
const (
	attrType   = "type"
	attrName   = "name"
	attrInput  = "input"
	attrOutput = "output"
	attrStatus = "status"
	attrError  = "error"
)

var roles = map[agent.Role]int64{agent.RoleUser: 1, agent.RoleAssistant: 2, agent.RoleTool: 3}

// collectionKey returns the hash key of all messages of a conversation. Names have no slash.
func collectionKey(account, id, birth string) string { return account + "/" + id + "/" + birth }

// messageItem returns a message without its texts.
func messageItem(m *agent.Message, c claim, mark string) item {
	return item{
		attrConversation: textOf(collectionKey(m.Account, m.Conversation, c.birth)), attrKey: textOf(m.Key), attrTimestamp: numberOf(c.time.UnixMicro()),
		attrAccount: textOf(m.Account), attrConversationID: textOf(m.Conversation), attrTurnID: textOf(m.Turn), attrRole: numberOf(roles[m.Role]),
		attrTokens: mapOf(item{
			attrInputTokens: numberOf(m.Tokens.Input), attrOutputTokens: numberOf(m.Tokens.Output), attrCacheTokens: numberOf(m.Tokens.Cache),
		}),
		attrWrite: textOf(mark),
	}
}

// setTexts adds the texts, which must fit into the item.
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

// readMessage reads a message, without texts that are in parts.
func readMessage(f fields) (*agent.Message, error) {
	tokens := f.subFields(attrTokens)
	m := &agent.Message{
		Key: f.textField(attrKey), Conversation: f.textField(attrConversationID), Account: f.textField(attrAccount), Turn: f.textField(attrTurnID),
		Body: f.textField(attrBody), Time: f.timeField(attrTimestamp),
		Tokens: agent.TokenUsage{Input: tokens.numberField(attrInputTokens), Output: tokens.numberField(attrOutputTokens), Cache: tokens.numberField(attrCacheTokens)},
	}
	n := f.numberField(attrRole)
	for role, number := range roles {
		if number == n {
			m.Role = role
		}
	}
	if m.Role == "" {
		f.reportDamage(attrRole)
	}
	for _, c := range f.listFields(attrToolCalls) {
		call := agent.ToolCall{
			ID: c.textField(attrID), Type: c.textField(attrType), Name: c.textField(attrName), Output: c.textField(attrOutput), Status: c.textField(attrStatus), Error: c.textField(attrError),
		}
		if c.hasField(attrInput) {
			call.Input = json.RawMessage(c.textField(attrInput))
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
		return s.wrapError(ctx, op, m.Key, err)
	}
	m.Time = at
	return nil
}

// addMessage returns the time that the message is stored with.
func (s *Store) addMessage(ctx context.Context, m *agent.Message) (time.Time, error) {
	r := conversationRef(m.Account, m.Conversation)
	if !r.isValid() {
		return time.Time{}, cmp.Or(s.checkUsable(ctx), errNoConversation())
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
	// The message is stored: complete the work even if ctx ends.
	ctx, cancel := detachContext(ctx)
	defer cancel()
	if !kept.Equal(c.time) {
		return kept, s.releaseClaim(ctx, r, m.Key, c)
	}
	there, err := s.countMessage(ctx, r, m.Key, c)
	if err != nil {
		return time.Time{}, err
	}
	if !there { // the conversation was deleted without this message
		if err := s.dropMessage(ctx, m, c, mark); err != nil {
			return time.Time{}, err
		}
		return time.Time{}, errNoConversation()
	}
	return c.time, nil
}

// putMessage puts a message, unless one with its key exists, and returns the time of the stored one.
func (s *Store) putMessage(ctx context.Context, m *agent.Message, c claim, mark string) (kept time.Time, err error) {
	it := messageItem(m, c, mark)
	parts, err := s.putTexts(ctx, it, m, c, mark)
	if err != nil {
		return time.Time{}, err
	}
	err = s.putItem(ctx, messagesTable, it)
	if err == nil {
		return c.time, nil
	}
	if !isRefused(err) {
		return time.Time{}, err // the message may be stored, and so may its parts: they belong to the conversation
	}
	old, err := s.getItem(ctx, messagesTable, collectionKey(m.Account, m.Conversation, c.birth), m.Key)
	if err != nil {
		return time.Time{}, err
	}
	if old == nil { // it was deleted with the conversation; countMessage will find out
		return c.time, nil
	}
	f := fieldsOf(old)
	kept = f.timeField(attrTimestamp)
	if f.textField(attrWrite) != mark {
		err = s.dropParts(ctx, m, c, parts)
	}
	return kept, cmp.Or(err, *f.err)
}

// dropMessage removes the message that was put with mark.
func (s *Store) dropMessage(ctx context.Context, m *agent.Message, c claim, mark string) error {
	if err := s.removeItem(ctx, messagesTable, collectionKey(m.Account, m.Conversation, c.birth), m.Key, attrWrite, mark); err != nil {
		return err
	}
	return s.dropParts(ctx, m, c, partKeys(m, mark))
}

// removeMessages removes all messages of a conversation and their parts.
func (s *Store) removeMessages(ctx context.Context, collection string) error {
	var q selection
	q.table = messagesTable
	q.e.requireEqual(textOf(collection), attrConversation)
	q.fields = q.e.namePlaceholder(attrKey)
	var keys []string
	flush := func() error {
		all := keys
		keys = nil
		return s.removeItems(ctx, messagesTable, collection, all)
	}
	err := s.queryItems(ctx, q, func(it item) error {
		keys = append(keys, fieldsOf(it).textField(attrKey))
		if len(keys) < maxBatch {
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
	all, err := s.readMessages(ctx, conversationRef(account, conversation), page)
	if err != nil {
		return nil, s.wrapError(ctx, op, conversation, err)
	}
	return all, nil
}

func (s *Store) readMessages(ctx context.Context, r ref, page store.Page) ([]*agent.Message, error) {
	it, err := s.findRecord(ctx, r)
	if err != nil {
		return nil, err
	}
	if it == nil {
		return nil, errNoConversation()
	}
	hash := collectionKey(r.account, r.id, fieldsOf(it).textField(attrBirth))
	q := selection{table: messagesTable, index: newestIndex, newest: true, limit: page.Limit}
	q.e.requireEqual(textOf(hash), attrConversation)
	if page.After != "" {
		after, err := s.getItem(ctx, messagesTable, hash, page.After)
		if err != nil {
			return nil, err
		}
		if after == nil {
			return nil, atoll.Errorf("", "", atoll.ErrNotExist, "no message %q", page.After)
		}
		q.e.conds = append(q.e.conds, q.e.namePlaceholder(attrTimestamp)+" < "+q.e.valuePlaceholder(after[attrTimestamp]))
	}
	var all []*agent.Message
	err = s.queryItems(ctx, q, func(it item) error {
		f := fieldsOf(it)
		m, err := readMessage(f)
		if err == nil && f.hasField(attrParts) {
			err = s.readTexts(ctx, hash, f, m)
		}
		all = append(all, m)
		return err
	})
	slices.Reverse(all)
	return all, err
}
