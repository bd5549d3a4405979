package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// agentSandboxColumns lists the columns in the order in which scanAgentSandbox reads them.
const agentSandboxColumns = "account, id, organization, agent, template, external, conversation, meta, created, deleted, rev"

// scanAgentSandbox reads one row.
func scanAgentSandbox(row row) (*store.AgentSandbox, error) {
	var x store.AgentSandbox
	var meta []byte
	var created int64
	var deleted sql.NullInt64
	err := row.Scan(&x.Account, &x.ID, &x.Organization, &x.Agent, &x.Template, &x.External, &x.Conversation, &meta, &created, &deleted, &x.Rev)
	if err == nil {
		err = json.Unmarshal(meta, &x.Meta)
	}
	if err != nil {
		return nil, err
	}
	x.Created = fromMicro(created)
	if deleted.Valid {
		x.Deleted = fromMicro(deleted.Int64)
	}
	return &x, nil
}

// nullMicro returns t in microseconds since 1970, or NULL if t is zero.
func nullMicro(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}

// InsertSandbox implements Conversations.
func (s *Store) InsertSandbox(ctx context.Context, x *store.AgentSandbox) error {
	const op = "insert sandbox"
	if err := store.CheckSandbox(op, x); err != nil {
		return err
	}
	meta, err := json.Marshal(x.Meta)
	if err != nil {
		return atoll.E(op, x.ID, atoll.ErrInvalid, err)
	}
	rev := store.FirstRev()
	err = s.writeTables(ctx, op, x.ID, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO agent_sandboxes ("+agentSandboxColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			x.Account, x.ID, Text(x.Organization), Text(x.Agent), Text(x.Template), Text(x.External), Text(x.Conversation), string(meta), x.Created.UnixMicro(), nullMicro(x.Deleted), rev)
		if s.db.Taken(err) {
			return atoll.Errorf(op, x.ID, atoll.ErrAlreadyExists, "a sandbox with this id already exists")
		}
		return err
	})
	if err == nil {
		x.Rev = rev
	}
	return err
}

// UpdateSandbox implements Conversations.
func (s *Store) UpdateSandbox(ctx context.Context, x *store.AgentSandbox) error {
	const op = "update sandbox"
	if err := store.CheckSandbox(op, x); err != nil {
		return err
	}
	meta, err := json.Marshal(x.Meta)
	if err != nil {
		return atoll.E(op, x.ID, atoll.ErrInvalid, err)
	}
	err = s.writeTables(ctx, op, x.ID, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE agent_sandboxes SET organization = ?, agent = ?, template = ?, external = ?, conversation = ?,
				meta = ?, created = ?, deleted = ?, rev = rev + 1
			WHERE account = ? AND id = ? AND rev = ?`,
			Text(x.Organization), Text(x.Agent), Text(x.Template), Text(x.External), Text(x.Conversation),
			string(meta), x.Created.UnixMicro(), nullMicro(x.Deleted), x.Account, x.ID, x.Rev)
		return checkChanged(res, err, op, x.ID)
	})
	if err == nil {
		x.Rev++
	}
	return err
}

// DeleteSandbox implements Conversations.
func (s *Store) DeleteSandbox(ctx context.Context, x *store.AgentSandbox) error {
	const op = "delete sandbox"
	return s.writeTables(ctx, op, x.ID, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM agent_sandboxes WHERE account = ? AND id = ? AND rev = ?", x.Account, x.ID, x.Rev)
		return checkChanged(res, err, op, x.ID)
	})
}

// FindSandbox implements Conversations.
func (s *Store) FindSandbox(ctx context.Context, account, id string) (*store.AgentSandbox, error) {
	const op = "find sandbox"
	none := atoll.Errorf(op, id, atoll.ErrNotExist, "no such sandbox")
	return queryOne(ctx, s, op, id, none, scanAgentSandbox, "SELECT "+agentSandboxColumns+" FROM agent_sandboxes WHERE account = ? AND id = ?", account, id)
}

// Sandboxes implements Conversations.
func (s *Store) Sandboxes(ctx context.Context, account string, page store.Page) ([]*store.AgentSandbox, error) {
	const op = "sandboxes"
	if err := store.CheckPage(op, page); err != nil {
		return nil, err
	}
	return queryAll(ctx, s, op, scanAgentSandbox, "SELECT "+agentSandboxColumns+` FROM agent_sandboxes
		WHERE account = ? AND id > ? AND deleted IS NULL ORDER BY id LIMIT ?`, account, page.After, page.Limit)
}
