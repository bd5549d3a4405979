package sqlstore

import (
	"context"
	"encoding/json"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// conversationColumns lists the columns in the order in which scanConversation reads them.
const conversationColumns = `account, id, organization, agent, template, sandbox, messages, input, output, cache,
	turn, until, turns, created, CASE WHEN updated > saved THEN updated ELSE saved END, rev`

// scanConversation reads one row.
func scanConversation(row row) (*store.Conversation, error) {
	var c store.Conversation
	var turn []byte
	var until, created, updated int64
	err := row.Scan(&c.Account, &c.ID, &c.Organization, &c.Agent, &c.Template, &c.Sandbox,
		&c.Stats.MessagesExchanged, &c.Stats.InputTokens, &c.Stats.OutputTokens, &c.Stats.CacheTokens,
		&turn, &until, &c.Turns, &created, &updated, &c.Rev)
	if err == nil && turn != nil {
		var kept storedTurn
		err = json.Unmarshal(turn, &kept)
		c.Turn, c.Caller = &kept.Turn, kept.Caller
	}
	if err != nil {
		return nil, err
	}
	c.Until, c.Created, c.Updated = fromMicro(until), fromMicro(created), fromMicro(updated)
	return &c, nil
}

// fromMicro returns the time of t microseconds since 1970, in UTC.
func fromMicro(t int64) time.Time { return time.UnixMicro(t).UTC() }

// A storedTurn is the JSON form of a turn.
type storedTurn struct {
	agent.Turn
	Caller string `json:"caller,omitempty"`
}

// turnJSON returns the JSON form of the turn of c, or nil if there is none.
func turnJSON(c *store.Conversation) (any, error) {
	if c.Turn == nil {
		return nil, nil
	}
	kept := storedTurn{*c.Turn, c.Caller}
	kept.Started = fromMicro(kept.Started.UnixMicro())
	text, err := json.Marshal(kept)
	return string(text), err
}

// InsertConversation implements Conversations.
func (s *Store) InsertConversation(ctx context.Context, c *store.Conversation) error {
	const op = "insert conversation"
	if err := store.CheckConversation(op, c); err != nil {
		return err
	}
	turn, err := turnJSON(c)
	if err != nil {
		return atoll.E(op, c.ID, atoll.ErrInvalid, err)
	}
	rev := store.FirstRev()
	err = s.writeTables(ctx, op, c.ID, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO conversations (account, id, organization, agent, template, sandbox,
				messages, input, output, cache, turn, until, turns, created, updated, saved, rev)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			c.Account, c.ID, Text(c.Organization), Text(c.Agent), Text(c.Template), Text(c.Sandbox),
			c.Stats.MessagesExchanged, c.Stats.InputTokens, c.Stats.OutputTokens, c.Stats.CacheTokens,
			turn, c.Until.UnixMicro(), c.Turns, c.Created.UnixMicro(), c.Updated.UnixMicro(), time.Time{}.UnixMicro(), rev)
		if s.db.Taken(err) {
			return atoll.Errorf(op, c.ID, atoll.ErrAlreadyExists, "a conversation with this id already exists")
		}
		return err
	})
	if err == nil {
		c.Rev = rev
	}
	return err
}

// UpdateConversation implements Conversations.
func (s *Store) UpdateConversation(ctx context.Context, c *store.Conversation) error {
	const op = "update conversation"
	if err := store.CheckConversation(op, c); err != nil {
		return err
	}
	turn, err := turnJSON(c)
	if err != nil {
		return atoll.E(op, c.ID, atoll.ErrInvalid, err)
	}
	err = s.writeTables(ctx, op, c.ID, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE conversations SET organization = ?, agent = ?, template = ?, sandbox = ?,
				turn = ?, until = ?, turns = ?, created = ?, updated = ?, rev = rev + 1
			WHERE account = ? AND id = ? AND rev = ?`,
			Text(c.Organization), Text(c.Agent), Text(c.Template), Text(c.Sandbox),
			turn, c.Until.UnixMicro(), c.Turns, c.Created.UnixMicro(), c.Updated.UnixMicro(), c.Account, c.ID, c.Rev)
		return checkChanged(res, err, op, c.ID)
	})
	if err == nil {
		c.Rev++
	}
	return err
}

// DeleteConversation implements Conversations.
func (s *Store) DeleteConversation(ctx context.Context, c *store.Conversation) error {
	const op = "delete conversation"
	return s.writeTables(ctx, op, c.ID, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM conversations WHERE account = ? AND id = ? AND rev = ?", c.Account, c.ID, c.Rev)
		if err := checkChanged(res, err, op, c.ID); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM messages WHERE account = ? AND conversation = ?", c.Account, c.ID)
		return err
	})
}

// FindConversation implements Conversations.
func (s *Store) FindConversation(ctx context.Context, account, id string) (*store.Conversation, error) {
	const op = "find conversation"
	return queryOne(ctx, s, op, id, noConversation(op, id), scanConversation, "SELECT "+conversationColumns+" FROM conversations WHERE account = ? AND id = ?", account, id)
}

func noConversation(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrNotExist, "no such conversation")
}

// Conversations implements Conversations.
func (s *Store) Conversations(ctx context.Context, account string, page store.Page) ([]*store.Conversation, error) {
	const op = "conversations"
	if err := store.CheckPage(op, page); err != nil {
		return nil, err
	}
	return queryAll(ctx, s, op, scanConversation, "SELECT "+conversationColumns+" FROM conversations WHERE account = ? AND id > ? ORDER BY id LIMIT ?",
		account, page.After, page.Limit)
}

// RunningTurns implements Conversations. It returns all running turns.
func (s *Store) RunningTurns(ctx context.Context) ([]*store.Conversation, error) {
	return queryAll(ctx, s, "conversations", scanConversation, "SELECT "+conversationColumns+" FROM conversations WHERE turn IS NOT NULL ORDER BY account, id")
}
