package postgres

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/retry"
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// maxTries is the number of attempts of an operation that other clients or broken connections prevent. It allows for
// all connections of the pool to be broken.
const maxTries = maxConnections + 2

// tables implements sqlstore.Database for a Store.
type tables struct{ *Store }

// Read implements sqlstore.Database.
func (t tables) Read(ctx context.Context, f func(context.Context, sqlstore.Querier) error) error {
	within, cancel := context.WithTimeout(ctx, t.server.callTimeout)
	defer cancel()
	db, err := t.openMigrated(ctx, within)
	if err == nil {
		err = retryTransient(within, func() error { return f(within, querier{db}) })
	}
	return t.server.timeoutError(ctx, within, err)
}

// Write implements sqlstore.Database.
func (t tables) Write(ctx context.Context, f func(context.Context, sqlstore.Tx) error) error {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.server.callTimeout)
	defer cancel()
	db, err := t.openMigrated(ctx, within)
	if err == nil {
		err = retryTransient(within, func() error { return t.server.runTransaction(ctx, within, db, f) })
	}
	return t.server.timeoutError(ctx, within, err)
}

// Note implements sqlstore.Database.
func (t tables) Note(ctx context.Context, f func(context.Context, sqlstore.Tx) error) error {
	return t.Write(ctx, func(ctx context.Context, tx sqlstore.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// retryTransient calls do until it succeeds, fails for good, has failed maxTries times, or ctx ends.
func retryTransient(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if try == maxTries || ctx.Err() != nil || !isRetried(err) {
			return err
		}
		if isBroken(err) {
			continue
		}
		select { // give other clients time to finish
		case <-ctx.Done():
		case <-time.After(rand.N(time.Duration(try) * 10 * time.Millisecond)):
		}
	}
}

// timeoutError returns the error of ctx if ctx has ended, and ErrUnavailable if only within has: the server did not
// answer in time. Otherwise it returns err.
func (s *Server) timeoutError(ctx, within context.Context, err error) error {
	var known *atoll.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case within.Err() != nil:
		return atoll.Errorf("", "", atoll.ErrUnavailable, "the server does not answer, or other clients block the call, for more than %s: %v", s.callTimeout, err)
	case errors.Is(err, context.DeadlineExceeded): // the deadline of a connection
		return atoll.Errorf("", "", atoll.ErrUnavailable, "the server does not answer: %v", err)
	}
	return err
}

// A querier runs queries with ? placeholders, which it turns into the numbered ones of PostgreSQL.
type querier struct{ db sqlstore.Querier }

func (q querier) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return q.db.ExecContext(ctx, numberPlaceholders(query), convertArgs(args)...)
}

func (q querier) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return q.db.QueryContext(ctx, numberPlaceholders(query), convertArgs(args)...)
}

func (q querier) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return q.db.QueryRowContext(ctx, numberPlaceholders(query), convertArgs(args)...)
}

// numberPlaceholders returns query with $1, $2 and so on instead of each ?.
func numberPlaceholders(query string) string {
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString("$" + strconv.Itoa(n))
		query = after
	}
}

// convertArgs converts arguments to the types of their columns, in place.
func convertArgs(args []any) []any {
	for i, arg := range args {
		if text, ok := arg.(sqlstore.Text); ok {
			args[i] = []byte(text)
		}
	}
	return args
}

// A tx is a transaction on a connection of its own.
type tx struct {
	querier
	conn   *sql.Conn
	schema string
}

// Lock implements sqlstore.Tx.
func (t tx) Lock(ctx context.Context, name string) error {
	sum := sha256.Sum256([]byte(t.schema + "/" + name))
	_, err := t.conn.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(binary.BigEndian.Uint64(sum[:])))
	return err
}

// ForUpdate implements sqlstore.Tx.
func (tx) ForUpdate() string { return " FOR UPDATE" }

// runTransaction runs f in one transaction. Each statement sees what was committed before it (READ COMMITTED), so
// conflicting transactions have to lock rows or names. The end of ctx aborts the transaction while f runs. Afterwards
// only within bounds the commit. The transaction also inserts a row into commits, so that its outcome can be queried;
// before the schema is ready, that table may be missing and there is no row.
func (s *Server) runTransaction(ctx, within context.Context, db *sql.DB, f func(context.Context, sqlstore.Tx) error) error {
	within, cancel := context.WithCancel(within)
	defer cancel()
	stopCancel := context.AfterFunc(ctx, cancel)
	defer stopCancel()
	conn, err := db.Conn(within)
	if err != nil {
		return err
	}
	defer conn.Close() // closes a connection that is still in a transaction
	word := ""
	if s.isReady() {
		word = atoll.NewID()
	}
	id, err := beginTransaction(within, conn, word)
	if err != nil {
		return err
	}
	err = f(within, tx{querier{conn}, conn, s.schema})
	if err == nil && !stopCancel() {
		err = ctx.Err()
	}
	if err != nil {
		if within.Err() == nil {
			_, _ = execRaw(within, conn, "ROLLBACK") // the first error counts
		}
		return err
	}
	results, err := execRaw(within, conn, "COMMIT")
	switch {
	case err == nil && results[0].CommandTag.String() != "COMMIT":
		return errors.New("the server rolled back the transaction")
	case err != nil && (isBroken(err) || within.Err() != nil):
		conn.Close() // findOutcome needs a connection, and the pool may have no other
		return s.findOutcome(db, id, word, err)
	}
	return err
}

// beginTransaction begins a transaction that inserts word into commits, and returns the id of the transaction.
func beginTransaction(ctx context.Context, conn *sql.Conn, word string) (id string, err error) {
	statements := "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_current_xact_id()"
	if word != "" {
		statements += "; INSERT INTO commits (word) VALUES ('" + word + "')"
	}
	results, err := execRaw(ctx, conn, statements)
	if err != nil {
		return "", err
	}
	return string(results[1].Rows[0][0]), nil
}

// execRaw sends statements in one message.
func execRaw(ctx context.Context, conn *sql.Conn, statements string) (results []*pgconn.Result, err error) {
	err = conn.Raw(func(c any) error {
		results, err = c.(*stdlib.Conn).Conn().PgConn().Exec(ctx, statements).ReadAll()
		return err
	})
	return results, err
}

// findOutcome determines whether a transaction was committed whose COMMIT had no answer. It returns nil if so, and a
// retryable error if not. word is the row of the transaction in commits; "" means that there is none, and that the
// transaction can be repeated in any case.
func (s *Server) findOutcome(db *sql.DB, id, word string, cause error) error {
	if word == "" {
		return &notCommitted{cause}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.callTimeout)
	defer cancel()
	var made bool
	policy := retry.Policy{First: 50 * time.Millisecond, Max: 50 * time.Millisecond}
	err := policy.Do(ctx, func() (err error) { made, err = isCommitted(ctx, db, id, word); return err })
	switch {
	case err != nil:
		return atoll.Errorf("", "", atoll.ErrUnavailable, "unknown whether the change was made: %w", cause)
	case made:
		return nil
	}
	return &notCommitted{cause}
}

// isCommitted reports whether a transaction was committed. An error means that the transaction may be still in
// progress, or that the outcome is unknown.
func isCommitted(ctx context.Context, db *sql.DB, id, word string) (committed bool, err error) {
	var status sql.NullString
	err = db.QueryRowContext(ctx, "SELECT pg_xact_status($1::text::xid8)", id).Scan(&status)
	switch {
	case sqlState(err) == invalidParameter: // the server no longer has the status, and has not reused the id
	case err != nil:
		return false, err
	case status.String == "in progress":
		return false, errors.New("the transaction is in progress")
	}
	// The id may have been reused, so only the row proves the commit.
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM commits WHERE word = $1)", word).Scan(&committed)
	return committed, err
}

// notCommitted is the error of a transaction that was certainly not committed.
type notCommitted struct{ err error }

func (e *notCommitted) Error() string { return fmt.Sprintf("the change was not made: %v", e.err) }
func (e *notCommitted) Unwrap() error { return e.err }
