// Package sqlstore implements the interfaces of package store over the tables of a SQL database. Packages sqlite and
// postgres supply the database.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A Store implements store.Store, except for Holders and Close, and store.Conversations,
// store.Keys and store.Audit.
type Store struct{ db Database }

// New returns the store in the tables of db.
func New(db Database) Store { return Store{db} }

// A Database holds the tables of a Store. Queries use the SQL that SQLite and PostgreSQL have in common, with ? for
// each argument.
type Database interface {
	// Exists reports whether the database exists. The first call that needs a missing database creates it.
	Exists() bool
	// Read runs f, which only reads, and repeats it if a connection broke.
	Read(ctx context.Context, f func(ctx context.Context, db Querier) error) error
	// Write runs f in a transaction, and repeats it in another transaction if concurrent changes prevented the
	// commit. Each statement sees what was committed before it. Once f has returned nil, Write finishes the commit
	// even if ctx ends: otherwise the caller would not know whether the change was made.
	Write(ctx context.Context, f func(ctx context.Context, tx Tx) error) error
	// Note is Write for a change that need not be on disk when it returns: a loss of power in the next second may undo it.
	Note(ctx context.Context, f func(ctx context.Context, tx Tx) error) error
	// Failed gives an error of the database its kind and adds advice. It returns nil for nil.
	Failed(op, id string, err error) error
	// Taken reports whether err is a violation of a unique index.
	Taken(err error) bool
}

// A Querier runs queries and statements.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// A Tx is a transaction.
type Tx interface {
	Querier
	// Lock waits until no other transaction holds the lock name. The lock ends with this transaction.
	Lock(ctx context.Context, name string) error
	// ForUpdate returns the suffix of a SELECT that locks its rows until this transaction ends. The SELECT waits for
	// transactions that are changing them.
	ForUpdate() string
}

// A Text may contain any character, including NUL, which a TEXT column of PostgreSQL cannot store.
type Text string

// readTables runs f with the database.
func (s *Store) readTables(ctx context.Context, op, id string, f func(ctx context.Context, db Querier) error) error {
	return s.db.Failed(op, id, s.db.Read(ctx, f))
}

// writeTables runs f in a transaction.
func (s *Store) writeTables(ctx context.Context, op, id string, f func(ctx context.Context, tx Tx) error) error {
	return s.changeTables(ctx, op, id, s.db.Write, f)
}

// changeTables runs f in a transaction of the method run of s.db.
func (s *Store) changeTables(ctx context.Context, op, id string, run func(context.Context, func(context.Context, Tx) error) error, f func(context.Context, Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.db.Failed(op, id, run(ctx, f))
}

// A row is a row of a result: *sql.Row or *sql.Rows.
type row interface{ Scan(...any) error }

// queryOne returns the row of a query, or the error none if there is no row.
func queryOne[T any](ctx context.Context, s *Store, op, id string, none error, scan func(row) (T, error), query string, args ...any) (x T, err error) {
	err = s.readTables(ctx, op, id, func(ctx context.Context, db Querier) (err error) {
		x, err = scan(db.QueryRowContext(ctx, query, args...))
		if errors.Is(err, sql.ErrNoRows) {
			err = none
		}
		return err
	})
	return x, err
}

// queryAll returns all rows of a query.
func queryAll[T any](ctx context.Context, s *Store, op string, scan func(row) (T, error), query string, args ...any) (all []T, err error) {
	err = s.readTables(ctx, op, "", func(ctx context.Context, db Querier) error {
		all = nil
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			x, err := scan(rows)
			if err != nil {
				return err
			}
			all = append(all, x)
		}
		return rows.Err()
	})
	return all, err
}

// scanColumn reads a row of one column.
func scanColumn[T any](row row) (x T, err error) {
	err = row.Scan(&x)
	return x, err
}

// checkChanged returns err, or ErrConflict if the statement changed no row.
func checkChanged(res sql.Result, err error, op, id string) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = atoll.E(op, id, atoll.ErrConflict, store.ErrChanged)
	}
	return err
}
