package postgres

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// migrations has a file for each change of the schema, in order. A released file never changes. Older programs must
// be able to use the new schema: a file only adds, and all that it adds has defaults. A later release removes what is
// no longer used, in a file that sets migrations.oldest to the version that programs need at least.
//
//go:embed migrations/*.sql
var migrations embed.FS

const (
	minServerVersion = 130000           // lowest accepted server_version_num
	migrationTimeout = 10 * time.Minute // time limit of a migration
)

// openMigrated returns the connections to a database with the schema of this program. A migration runs until ctx
// ends; the rest is bounded by within.
func (t tables) openMigrated(ctx, within context.Context) (*sql.DB, error) {
	db, err := t.openDB(ctx)
	if err != nil {
		return nil, err
	}
	s := t.server
	if s.isReady() {
		return db, nil
	}
	select {
	case s.preparing <- struct{}{}:
		defer func() { <-s.preparing }()
	case <-within.Done():
		return nil, within.Err()
	}
	if s.isReady() {
		return db, nil
	}
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	have := 0
	err = retryTransient(within, func() error {
		have, err = s.schemaVersion(within, db, len(files))
		return err
	})
	if err == nil && have < len(files) {
		err = retryTransient(ctx, func() error { return s.migrateSchema(ctx, db, files) })
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
	return db, nil
}

// isReady reports whether the schema is known to be current.
func (s *Server) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// migrateSchema brings the schema to the version of this program. If many programs start at once, one of them does
// it.
func (s *Server) migrateSchema(ctx context.Context, db *sql.DB, files []string) error {
	ctx, cancel := context.WithTimeout(ctx, migrationTimeout)
	defer cancel()
	return s.runTransaction(ctx, ctx, db, func(ctx context.Context, t sqlstore.Tx) error {
		if _, err := t.ExecContext(ctx, "SET LOCAL statement_timeout = 0"); err != nil {
			return err
		}
		if err := t.Lock(ctx, "migrate"); err != nil {
			return err
		}
		have, err := s.schemaVersion(ctx, t, len(files))
		if err == nil && have == 0 {
			err = s.createSchema(ctx, t)
		}
		if err != nil {
			return err
		}
		for n := have + 1; n <= len(files); n++ {
			text, err := migrations.ReadFile(files[n-1])
			if err != nil {
				return err
			}
			if _, err := execRaw(ctx, t.(tx).conn, string(text)); err != nil {
				return err
			}
		}
		_, err = t.ExecContext(ctx, "UPDATE migrations SET version = ? WHERE version < ?", len(files), len(files))
		return err
	})
}

// schemaVersion returns the number of the last change of the schema, or 0 if there is none. Kinds: ErrUnavailable
// (this program does not support the schema any longer).
func (s *Server) schemaVersion(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, known int) (version int, err error) {
	there, oldest := false, 0
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations')", s.schema).Scan(&there)
	if err == nil && there {
		err = db.QueryRowContext(ctx, "SELECT version, oldest FROM "+s.schema+".migrations").Scan(&version, &oldest)
	}
	if err == nil && oldest > known {
		err = atoll.Errorf("", "", atoll.ErrUnavailable,
			"a newer Atoll wrote this database (schema %d, needs a program that supports %d, this one supports %d): upgrade", version, oldest, known)
	}
	return version, err
}

// createSchema creates the schema, unless the owner of the database has done so, and the table migrations.
func (s *Server) createSchema(ctx context.Context, t sqlstore.Tx) error {
	var have int
	var encoding string
	var there bool
	err := t.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),
		EXISTS (SELECT FROM pg_namespace WHERE nspname = ?)`, s.schema).Scan(&have, &encoding, &there)
	switch {
	case err != nil:
		return err
	case have < minServerVersion:
		return atoll.Errorf("", "", atoll.ErrUnavailable, "the server runs PostgreSQL %d: %d or later is required", have/10000, minServerVersion/10000)
	case encoding != "UTF8":
		return atoll.Errorf("", "", atoll.ErrUnavailable, "the database has encoding %s: create one with ENCODING 'UTF8'", encoding)
	case !there:
		if _, err := t.ExecContext(ctx, "CREATE SCHEMA "+s.schema); err != nil {
			return err
		}
	}
	_, err = t.ExecContext(ctx, "CREATE TABLE migrations (version BIGINT NOT NULL, oldest BIGINT NOT NULL)")
	if err == nil {
		_, err = t.ExecContext(ctx, "INSERT INTO migrations VALUES (0, 0)")
	}
	return err
}
