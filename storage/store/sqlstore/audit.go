package sqlstore

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll/storage/store"
)

// AddEvents implements Audit.
func (s *Store) AddEvents(ctx context.Context, events []store.AuditEvent) error {
	return s.changeTables(ctx, "audit", "", s.db.Note, func(ctx context.Context, tx Tx) error {
		// The lock makes the ids ascend in the order of commits.
		if err := tx.Lock(ctx, "audit"); err != nil {
			return err
		}
		for _, e := range events {
			e.ID = 0
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO audit (time, account, project, sandbox, event) VALUES (?, ?, ?, ?, ?)",
				e.Time.UnixMilli(), replaceUnstorable(e.Account), replaceUnstorable(e.Project), replaceUnstorable(e.Sandbox), Text(text))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// replaceUnstorable replaces the characters of s that some databases cannot store.
func replaceUnstorable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

// Events implements Audit.
func (s *Store) Events(ctx context.Context, q store.AuditQuery) ([]store.AuditEvent, error) {
	if !s.db.Exists() {
		return nil, nil
	}
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	var where []string
	var args []any
	add := func(set bool, condition string, arg any) {
		if set {
			where, args = append(where, condition), append(args, arg)
		}
	}
	add(q.Project != "", "project = ?", q.Project)
	add(q.Sandbox != "", "sandbox = ?", q.Sandbox)
	add(q.Account != "", "account = ?", q.Account)
	add(!q.Since.IsZero(), "time >= ?", q.Since.UnixMilli())
	add(q.After > 0, "id > ?", q.After)
	add(q.Before > 0, "id < ?", q.Before)
	query := "SELECT id, event FROM audit"
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	if query += " ORDER BY id"; q.After <= 0 {
		query += " DESC"
	}
	all, err := queryAll(ctx, s, "audit", scanEvent, query+" LIMIT ?", append(args, min(limit, store.MaxAuditEvents))...)
	if q.After <= 0 {
		slices.Reverse(all)
	}
	return all, err
}

func scanEvent(row row) (e store.AuditEvent, err error) {
	var id int64
	var text []byte
	if err = row.Scan(&id, &text); err == nil {
		err = json.Unmarshal(text, &e)
	}
	e.ID = id
	return e, err
}

// DropEvents implements Audit.
func (s *Store) DropEvents(ctx context.Context, before time.Time, most int) (n int64, err error) {
	if !s.db.Exists() {
		return 0, nil
	}
	err = s.writeTables(ctx, "audit", "", func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE time < ? ORDER BY time, id LIMIT ?)", before.UnixMilli(), most)
		if err == nil {
			n, err = res.RowsAffected()
		}
		return err
	})
	return n, err
}
