package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/seed46cd37a8/atoll"
)

// KeepSecret implements Secrets.
func (s *SQLite) KeepSecret(ctx context.Context, scope, id, secret string) (kept string, err error) {
	err = s.write(ctx, "secret", id, func(ctx context.Context, tx *sql.Tx) error {
		kept, err = keep(ctx, tx, scope, id, secret)
		return err
	})
	return kept, err
}

// Secret implements Secrets.
func (s *SQLite) Secret(ctx context.Context, id string) (raw string, err error) {
	db, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	err = db.QueryRowContext(ctx, "SELECT raw FROM secrets WHERE id = ?", id).Scan(&raw)
	if errors.Is(err, sql.ErrNoRows) {
		return "", atoll.Errorf("secret", id, atoll.ErrNotExist, "it was made without a secret")
	}
	return raw, s.failed("secret", id, err)
}

// DropSecret implements Secrets.
func (s *SQLite) DropSecret(ctx context.Context, id string) error {
	return s.write(ctx, "remove", id, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM secrets WHERE id = ? AND id NOT IN (SELECT id FROM sandboxes)", id)
		return err
	})
}

// Abandoned implements Secrets.
func (s *SQLite) Abandoned(ctx context.Context, scope string) ([]string, error) {
	db, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, `SELECT id FROM secrets WHERE scope = ? AND id NOT IN (SELECT id FROM sandboxes)
		AND id NOT IN (SELECT id FROM gone WHERE since >= ?) ORDER BY id`, scope, since())
	if err != nil {
		return nil, s.failed("list", "", err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, s.failed("list", "", err)
		}
		all = append(all, id)
	}
	return all, s.failed("list", "", rows.Err())
}
