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
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// tries is how often something is begun that others or broken connections were in the way
// of; the last connections that are broken are found out one by one.
const tries = connections + 2

// tables is a Store as the Database of its tables.
type tables struct{ *Store }

// Read implements store.Database.
func (t tables) Read(ctx context.Context, f func(context.Context, sqlstore.Querier) error) error {
	within, cancel := context.WithTimeout(ctx, t.server.patience)
	defer cancel()
	db, err := t.prepared(ctx, within)
	if err == nil {
		err = again(within, func() error { return f(within, querier{db}) })
	}
	return t.server.inTime(ctx, within, err)
}

// Write implements store.Database.
func (t tables) Write(ctx context.Context, f func(context.Context, sqlstore.Tx) error) error {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.server.patience)
	defer cancel()
	db, err := t.prepared(ctx, within)
	if err == nil {
		err = again(within, func() error { return t.server.transact(ctx, within, db, f) })
	}
	return t.server.inTime(ctx, within, err)
}

// again does what others, or a connection that broke, were in the way of, and what can be
// done again, until it is done.
func again(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if try == tries || ctx.Err() != nil || !isRetried(err) {
			return err
		}
		if isBroken(err) {
			continue
		}
		select { // whoever was in the way is given time to go
		case <-ctx.Done():
		case <-time.After(rand.N(time.Duration(try) * 10 * time.Millisecond)):
		}
	}
}

// inTime is the error of whoever has given up, or of a server that does not answer, which
// is not to be taken for that.
func (s *Server) inTime(ctx, within context.Context, err error) error {
	var known *atoll.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case within.Err() != nil:
		return atoll.Errorf("", "", atoll.ErrUnavailable, "it does not answer, or others are in the way, for more than %s: %v", s.patience, err)
	case errors.Is(err, context.DeadlineExceeded): // that of a connection
		return atoll.Errorf("", "", atoll.ErrUnavailable, "it does not answer: %v", err)
	}
	return err
}

// A querier asks a database, or a connection, with arguments that are numbered, as
// PostgreSQL wants them.
type querier struct{ to sqlstore.Querier }

func (q querier) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return q.to.ExecContext(ctx, numbered(query), given(args)...)
}

func (q querier) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return q.to.QueryContext(ctx, numbered(query), given(args)...)
}

func (q querier) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return q.to.QueryRowContext(ctx, numbered(query), given(args)...)
}

// numbered is query with $1, $2 and so on in the places of ?.
func numbered(query string) string {
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

// given are arguments as their columns want them.
func given(args []any) []any {
	for i, arg := range args {
		if text, ok := arg.(sqlstore.Text); ok {
			args[i] = []byte(text)
		}
	}
	return args
}

// A tx is a transaction on a connection that nobody else has meanwhile.
type tx struct {
	querier
	conn   *sql.Conn
	schema string
}

// Lock implements store.Tx.
func (t tx) Lock(ctx context.Context, name string) error {
	sum := sha256.Sum256([]byte(t.schema + "/" + name))
	_, err := t.conn.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(binary.BigEndian.Uint64(sum[:])))
	return err
}

// ForUpdate implements store.Tx.
func (tx) ForUpdate() string { return " FOR UPDATE" }

// transact runs f in one transaction. Each statement sees what was committed before it
// (READ COMMITTED): what has to be alone locks what it is about. Whoever waits for ctx can
// give up until f has ended; then it is committed, as long as within lasts. That it was is
// written down, but for the one that makes the table for that.
func (s *Server) transact(ctx, within context.Context, db *sql.DB, f func(context.Context, sqlstore.Tx) error) error {
	within, cancel := context.WithCancel(within)
	defer cancel()
	hold := context.AfterFunc(ctx, cancel)
	defer hold()
	conn, err := db.Conn(within)
	if err != nil {
		return err
	}
	defer conn.Close() // one that is in a transaction still is not used again
	word := ""
	if s.isReady() {
		word = atoll.NewID()
	}
	id, err := begin(within, conn, word)
	if err != nil {
		return err
	}
	err = f(within, tx{querier{conn}, conn, s.schema})
	if err == nil && !hold() {
		err = ctx.Err()
	}
	if err != nil {
		if within.Err() == nil {
			_, _ = raw(within, conn, "ROLLBACK") // the first error counts
		}
		return err
	}
	answers, err := raw(within, conn, "COMMIT")
	switch {
	case err == nil && answers[0].CommandTag.String() != "COMMIT":
		return errors.New("the transaction was not made")
	case err != nil && (isBroken(err) || within.Err() != nil):
		conn.Close() // whoever asks takes another one, of which there may be no more
		return s.outcome(db, id, word, err)
	}
	return err
}

// begin begins a transaction, which leaves a word if it is made, and returns its id.
func begin(ctx context.Context, conn *sql.Conn, word string) (id string, err error) {
	statements := "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_current_xact_id()"
	if word != "" {
		statements += "; INSERT INTO commits (word) VALUES ('" + word + "')"
	}
	answers, err := raw(ctx, conn, statements)
	if err != nil {
		return "", err
	}
	return string(answers[1].Rows[0][0]), nil
}

// raw sends statements at once.
func raw(ctx context.Context, conn *sql.Conn, statements string) (answers []*pgconn.Result, err error) {
	err = conn.Raw(func(c any) error {
		answers, err = c.(*stdlib.Conn).Conn().PgConn().Exec(ctx, statements).ReadAll()
		return err
	})
	return answers, err
}

// outcome asks what became of a transaction whose COMMIT had no answer: nil if it was
// made, and an error that can be tried again if it was not. word is what it has left then,
// "" if nothing: it can be tried again in any case.
func (s *Server) outcome(db *sql.DB, id, word string, cause error) error {
	if word == "" {
		return &notMade{cause}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	for {
		made, err := isMade(ctx, db, id, word)
		switch {
		case err == nil && made:
			return nil
		case err == nil:
			return &notMade{cause}
		}
		select {
		case <-ctx.Done():
			return atoll.Errorf("", "", atoll.ErrUnavailable, "it is not known whether the change was made: %w", cause)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// isMade reports whether a transaction was made; an error says that it may be still, or
// that nobody knows.
func isMade(ctx context.Context, db *sql.DB, id, word string) (made bool, err error) {
	var status sql.NullString
	err = db.QueryRowContext(ctx, "SELECT pg_xact_status($1::text::xid8)", id).Scan(&status)
	switch {
	case code(err) == invalidParameter: // the server has lost it, and has not given its id away yet
	case err != nil:
		return false, err
	case status.String == "in progress":
		return false, errors.New("it goes on")
	}
	// Another one has the id by now, unless it has left the word.
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM commits WHERE word = $1)", word).Scan(&made)
	return made, err
}

// notMade says that a transaction is known not to have been made.
type notMade struct{ err error }

func (e *notMade) Error() string { return fmt.Sprintf("the change was not made: %v", e.err) }
func (e *notMade) Unwrap() error { return e.err }
