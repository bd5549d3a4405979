// Package sqlstore implements store.Store and its neighbours over the tables of a SQL
// database. Packages sqlite and postgres supply the database.
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

// A Database holds the tables of a Store. Queries are in what SQLite and PostgreSQL
// have in common, with ? for each argument.
type Database interface {
	// Exists reports whether the database is there; one that is not is made by the first
	// call that needs it.
	Exists() bool
	// Read runs f, which reads, and again where a connection broke.
	Read(ctx context.Context, f func(ctx context.Context, db Querier) error) error
	// Write runs f in a transaction, and again in another one if that could not be
	// because of what others did meanwhile. Each statement sees what was committed before
	// it. A transaction that f has ended without an error is not broken off: whoever gave up
	// would not know whether it was made.
	Write(ctx context.Context, f func(ctx context.Context, tx Tx) error) error
	// Failed gives an error of the database its kind, and says what to do. nil is nil.
	Failed(op, id string, err error) error
	// Taken reports whether err says that a row is there already.
	Taken(err error) bool
}

// A Querier answers queries, and makes changes.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// A Tx is a transaction.
type Tx interface {
	Querier
	// Lock waits until no other transaction has locked name. The lock ends with this one.
	Lock(ctx context.Context, name string) error
	// ForUpdate is the end of a SELECT of rows that no other transaction changes until
	// this one ends; those that are about to be changed are waited for.
	ForUpdate() string
}

// A Text may have every character, also NUL, which is no character of TEXT in PostgreSQL.
type Text string

// read runs f.
func (s *Store) read(ctx context.Context, op, id string, f func(ctx context.Context, db Querier) error) error {
	return s.db.Failed(op, id, s.db.Read(ctx, f))
}

// write runs f in a transaction.
func (s *Store) write(ctx context.Context, op, id string, f func(ctx context.Context, tx Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.db.Failed(op, id, s.db.Write(ctx, f))
}

// A row is one of a table, or the only one of a query.
type row interface{ Scan(...any) error }

// one reads the row of a query; none is the error when there is none.
func one[T any](ctx context.Context, s *Store, op, id string, none error, scan func(row) (T, error), query string, args ...any) (x T, err error) {
	err = s.read(ctx, op, id, func(ctx context.Context, db Querier) (err error) {
		x, err = scan(db.QueryRowContext(ctx, query, args...))
		if errors.Is(err, sql.ErrNoRows) {
			err = none
		}
		return err
	})
	return x, err
}

// list reads all rows of a query.
func list[T any](ctx context.Context, s *Store, op string, scan func(row) (T, error), query string, args ...any) (all []T, err error) {
	err = s.read(ctx, op, "", func(ctx context.Context, db Querier) error {
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

// scanned reads a row of one column.
func scanned[T any](row row) (x T, err error) {
	err = row.Scan(&x)
	return x, err
}

// changed is ErrConflict if nothing was.
func changed(res sql.Result, err error, op, id string) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = atoll.E(op, id, atoll.ErrConflict, store.ErrChanged)
	}
	return err
}
