package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/seed46cd37a8/atoll"
)

// KeepSecret implements Secrets.
func (s *Store) KeepSecret(ctx context.Context, scope, id, secret string) (kept string, err error) {
	err = s.writeTables(ctx, "secret", id, func(ctx context.Context, tx Tx) error {
		kept, err = insertSecret(ctx, tx, scope, id, secret)
		return err
	})
	return kept, err
}

// Secret implements Secrets.
func (s *Store) Secret(ctx context.Context, id string) (raw string, err error) {
	none := atoll.Errorf("secret", id, atoll.ErrNotExist, "the sandbox has no secret")
	return queryOne(ctx, s, "secret", id, none, scanColumn[string], "SELECT raw FROM secrets WHERE id = ?", id)
}

// DropSecret implements Secrets.
func (s *Store) DropSecret(ctx context.Context, id string) error {
	return s.writeTables(ctx, "remove", id, func(ctx context.Context, tx Tx) error {
		// Wait for a transaction that adds a record and retains this secret for it.
		var raw string
		err := tx.QueryRowContext(ctx, "SELECT raw FROM secrets WHERE id = ?"+tx.ForUpdate(), id).Scan(&raw)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM secrets WHERE id = ? AND id NOT IN (SELECT id FROM sandboxes)", id)
		return err
	})
}

// Abandoned implements Secrets.
func (s *Store) Abandoned(ctx context.Context, scope string) ([]string, error) {
	return queryAll(ctx, s, "list", scanColumn[string], `SELECT id FROM secrets WHERE scope = ? AND id NOT IN (SELECT id FROM sandboxes)
		AND id NOT IN (SELECT id FROM gone WHERE since >= ?) ORDER BY id`, scope, forgottenCutoff())
}
