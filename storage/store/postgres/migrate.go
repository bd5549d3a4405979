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

// Each change of the schema is a file, in order. One that was released is never
// changed. Programs that do not know it go on with what it makes: it only adds, and what
// it adds has a default. What nobody uses any longer is removed a release later, by a
// file that says in migrations.oldest which one a program has to know at least.
//
//go:embed migrations/*.sql
var migrations embed.FS

const (
	needed    = 130000           // the least server_version_num
	migrating = 10 * time.Minute // how long the schema may be worked on
)

// prepared returns the connections to a database that has the tables. Those are made, or
// changed, for as long as ctx lasts; all else is done as long as within does.
func (t tables) prepared(ctx, within context.Context) (*sql.DB, error) {
	db, err := t.database(ctx)
	if err != nil {
		return nil, err
	}
	s := t.server
	if s.isReady() {
		return db, nil
	}
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
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
	err = again(within, func() error {
		have, err = s.version(within, db, len(files))
		return err
	})
	if err == nil && have < len(files) {
		err = again(ctx, func() error { return s.migrate(ctx, db, files) })
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
	return db, nil
}

func (s *Server) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// migrate makes the schema the one that this program knows. Of many programs that begin
// at once, one does.
func (s *Server) migrate(ctx context.Context, db *sql.DB, files []string) error {
	ctx, cancel := context.WithTimeout(ctx, migrating)
	defer cancel()
	return s.transact(ctx, ctx, db, func(ctx context.Context, t sqlstore.Tx) error {
		if _, err := t.ExecContext(ctx, "SET LOCAL statement_timeout = 0"); err != nil {
			return err
		}
		if err := t.Lock(ctx, "migrate"); err != nil {
			return err
		}
		have, err := s.version(ctx, t, len(files))
		if err == nil && have == 0 {
			err = s.first(ctx, t)
		}
		if err != nil {
			return err
		}
		for n := have + 1; n <= len(files); n++ {
			text, err := migrations.ReadFile(files[n-1])
			if err != nil {
				return err
			}
			if _, err := raw(ctx, t.(tx).conn, string(text)); err != nil {
				return err
			}
		}
		_, err = t.ExecContext(ctx, "UPDATE migrations SET version = ? WHERE version < ?", len(files), len(files))
		return err
	})
}

// version is the number of the last change of the schema, 0 if there is none. Kinds:
// ErrUnavailable (this program knows fewer than it has to).
func (s *Server) version(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, known int) (version int, err error) {
	there, oldest := false, 0
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations')", s.schema).Scan(&there)
	if err == nil && there {
		err = db.QueryRowContext(ctx, "SELECT version, oldest FROM "+s.schema+".migrations").Scan(&version, &oldest)
	}
	if err == nil && oldest > known {
		err = atoll.Errorf("", "", atoll.ErrUnavailable,
			"a newer Atoll has written it (schema %d, for those that know %d; this one knows %d): use that one", version, oldest, known)
	}
	return version, err
}

// first makes the schema, if the database's owner has not, and what counts its changes.
func (s *Server) first(ctx context.Context, t sqlstore.Tx) error {
	var have int
	var encoding string
	var there bool
	err := t.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),
		EXISTS (SELECT FROM pg_namespace WHERE nspname = ?)`, s.schema).Scan(&have, &encoding, &there)
	switch {
	case err != nil:
		return err
	case have < needed:
		return atoll.Errorf("", "", atoll.ErrUnavailable, "its server is of PostgreSQL %d: %d or later is needed", have/10000, needed/10000)
	case encoding != "UTF8":
		return atoll.Errorf("", "", atoll.ErrUnavailable, "it is in %s: make a database with ENCODING 'UTF8'", encoding)
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
