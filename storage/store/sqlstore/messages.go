package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// messageColumns lists the columns in the order in which scanMessage reads them.
const messageColumns = "account, conversation, key, time, turn, role, body, input, output, cache, tool_calls"

// scanMessage reads one row.
func scanMessage(row row) (*agent.Message, error) {
	var m agent.Message
	var time int64
	var calls []byte
	err := row.Scan(&m.Account, &m.Conversation, &m.Key, &time, &m.Turn, &m.Role, &m.Body, &m.Tokens.Input, &m.Tokens.Output, &m.Tokens.Cache, &calls)
	if err == nil && len(calls) > 0 {
		m.ToolCalls, err = parseToolCalls(calls)
	}
	if err != nil {
		return nil, err
	}
	m.Time = fromMicro(time)
	return &m, nil
}

// A storedToolCall is the JSON form of a tool call. The input is a string, since JSON within JSON would not be
// retained byte for byte.
type storedToolCall struct {
	agent.ToolCall
	Input string `json:"input,omitempty"`
}

func toolCallsJSON(calls []agent.ToolCall) (string, error) {
	if len(calls) == 0 {
		return "", nil
	}
	kept := make([]storedToolCall, len(calls))
	for i, c := range calls {
		kept[i] = storedToolCall{c, string(c.Input)}
	}
	text, err := json.Marshal(kept)
	return string(text), err
}

func parseToolCalls(text []byte) ([]agent.ToolCall, error) {
	var kept []storedToolCall
	if err := json.Unmarshal(text, &kept); err != nil {
		return nil, err
	}
	calls := make([]agent.ToolCall, len(kept))
	for i, c := range kept {
		calls[i] = c.ToolCall
		if c.Input != "" {
			calls[i].Input = json.RawMessage(c.Input)
		}
	}
	return calls, nil
}

// AddMessage implements Conversations.
func (s *Store) AddMessage(ctx context.Context, m *agent.Message) error {
	const op = "add message"
	if err := store.CheckMessage(op, m); err != nil {
		return err
	}
	calls, err := toolCallsJSON(m.ToolCalls)
	if err != nil {
		return atoll.E(op, m.Key, atoll.ErrInvalid, err)
	}
	kept := m.Time.UnixMicro()
	err = s.writeTables(ctx, op, m.Key, func(ctx context.Context, tx Tx) error {
		if err := checkConversation(ctx, tx, tx.ForUpdate(), op, m.Account, m.Conversation); err != nil {
			return err
		}
		err := tx.QueryRowContext(ctx, "SELECT time FROM messages WHERE account = ? AND conversation = ? AND key = ?", m.Account, m.Conversation, m.Key).Scan(&kept)
		if !errors.Is(err, sql.ErrNoRows) {
			return err // nil if the message exists
		}
		if kept, err = insertMessage(ctx, tx, m, calls); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE conversations SET messages = messages + 1, saved = ? WHERE account = ? AND id = ?", kept, m.Account, m.Conversation)
		return err
	})
	if err == nil {
		m.Time = fromMicro(kept)
	}
	return err
}

// insertMessage adds m after all other messages and returns its stored time.
func insertMessage(ctx context.Context, tx Tx, m *agent.Message, calls string) (kept int64, err error) {
	var next sql.NullInt64
	err = tx.QueryRowContext(ctx, "SELECT max(time) + 1 FROM messages WHERE account = ? AND conversation = ?", m.Account, m.Conversation).Scan(&next)
	if err != nil {
		return 0, err
	}
	kept = m.Time.UnixMicro()
	if next.Valid {
		kept = max(kept, next.Int64)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO messages ("+messageColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		m.Account, m.Conversation, m.Key, kept, Text(m.Turn), m.Role, Text(m.Body), m.Tokens.Input, m.Tokens.Output, m.Tokens.Cache, calls)
	return kept, err
}

// checkConversation returns ErrNotExist if there is no such conversation. suffix is appended to the query.
func checkConversation(ctx context.Context, db Querier, suffix, op, account, id string) error {
	var rev int64
	err := db.QueryRowContext(ctx, "SELECT rev FROM conversations WHERE account = ? AND id = ?"+suffix, account, id).Scan(&rev)
	if errors.Is(err, sql.ErrNoRows) {
		err = noConversation(op, id)
	}
	return err
}

// Messages implements Conversations.
func (s *Store) Messages(ctx context.Context, account, conversation string, page store.Page) ([]*agent.Message, error) {
	const op = "messages"
	if err := store.CheckPage(op, page); err != nil {
		return nil, err
	}
	before := int64(math.MaxInt64)
	err := s.readTables(ctx, op, conversation, func(ctx context.Context, db Querier) error {
		if err := checkConversation(ctx, db, "", op, account, conversation); err != nil || page.After == "" {
			return err
		}
		err := db.QueryRowContext(ctx, "SELECT time FROM messages WHERE account = ? AND conversation = ? AND key = ?", account, conversation, page.After).Scan(&before)
		if errors.Is(err, sql.ErrNoRows) {
			err = atoll.Errorf(op, conversation, atoll.ErrNotExist, "no message %q", page.After)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	all, err := queryAll(ctx, s, op, scanMessage, "SELECT "+messageColumns+" FROM messages WHERE account = ? AND conversation = ? AND time < ? ORDER BY time DESC LIMIT ?",
		account, conversation, before, page.Limit)
	slices.Reverse(all)
	return all, err
}

// AddUsage implements Conversations.
func (s *Store) AddUsage(ctx context.Context, account, conversation string, turn int64, u agent.TokenUsage) error {
	const op = "add usage"
	return s.writeTables(ctx, op, conversation, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE conversations SET input = input + ?, output = output + ?, cache = cache + ?, counted = ?
			WHERE account = ? AND id = ? AND counted < ?`, u.Input, u.Output, u.Cache, turn, account, conversation, turn)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err == nil && n == 0 {
			err = checkConversation(ctx, tx, "", op, account, conversation)
		}
		return err
	})
}
