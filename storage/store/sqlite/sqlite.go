// Package sqlite is the store in a file, for the programs of one machine.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// Each change of the schema is a file, in order. One that was released is never
// changed.
//
//go:embed migrations/*.sql
var migrations embed.FS

// SQLite is a Store, and a Conversations, in one file, which it opens when it is first
// needed.
type Store struct {
	sqlstore.Store
	path string

	mu     sync.Mutex
	closed bool
	db     *sql.DB // nil until it is needed
	holder *fsutil.Lock
	name   string // of holder
}

// New returns the store in the file at path. It touches nothing: the file
// is made, for this user only, by the first call that needs it, which fails if
// that cannot be.
func New(path string) *Store {
	s := &Store{path: path}
	s.Store = sqlstore.New(inFile{s})
	return s
}

// Path is that of the file.
func (s *Store) Path() string { return s.path }

// Exists reports whether the file is there, without opening it.
func (s *Store) Exists() bool {
	_, err := os.Lstat(s.path)
	return err == nil
}

// Close implements Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var err error
	if s.db != nil {
		err = s.db.Close()
		s.db = nil
	}
	if s.holder != nil {
		_ = s.holder.Remove() // a file that nobody locks says that its holder has gone
		s.holder = nil
	}
	return err
}

// open returns the database, which is opened if it is not yet.
func (s *Store) open(ctx context.Context) (*sql.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, atoll.Errorf("open", s.path, atoll.ErrUnavailable, "the store is closed")
	}
	if s.db != nil {
		return s.db, nil
	}
	db, err := s.connect(ctx)
	if err != nil {
		return nil, s.failed("open", "", err)
	}
	s.db = db
	return db, nil
}

// pragmas: a writer waits for another one, at most so long; readers never do.
// What is committed is on the disk, not in a buffer of the kernel's.
const pragmas = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"

func (s *Store) connect(ctx context.Context) (*sql.DB, error) {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return nil, err
	}
	// SQLite would make it for all to read; its other files get the same mode.
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	f.Close()
	// Two cannot turn a new file into a database at once, busy_timeout or not.
	lock, err := openingLock(ctx, s.path+".lock")
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	ctx = context.WithoutCancel(ctx) // one who gives up does not spoil it for the others
	file := url.URL{Scheme: "file", Path: s.path}
	db, err := sql.Open("sqlite", file.String()+pragmas)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // one writer is all there can be, and what is read is small
	if err := migrate(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// openingLock waits for the lock, but not for a program that was stopped while it
// had it.
func openingLock(ctx context.Context, path string) (*fsutil.Lock, error) {
	const patience = 30 * time.Second
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lock, err := fsutil.AwaitLock(within, path)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		err = atoll.Errorf("", "", atoll.ErrUnavailable, "another program has been opening it for more than %s: look for one that was stopped", patience)
	}
	return lock, err
}

// migrate makes the schema the one that this program knows.
func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	var have int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return err
	}
	if have > len(files) {
		return atoll.Errorf("", "", atoll.ErrUnavailable,
			"a newer Atoll has written it (schema %d, this one knows %d): use that one, or another state_dir", have, len(files))
	}
	for n := have + 1; n <= len(files); n++ {
		text, err := migrations.ReadFile(files[n-1])
		if err != nil {
			return err
		}
		err = within(ctx, db, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, fmt.Sprintf("%s; PRAGMA user_version = %d", text, n))
			return err
		})
		if err != nil {
			return fmt.Errorf("schema %d: %w", n, err)
		}
	}
	return nil
}

// within runs f in a transaction, which is begun as one that writes.
func within(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // the first error counts
		return err
	}
	return tx.Commit()
}

// failed gives an error of the database its kind, and says what to do.
func (s *Store) failed(op, id string, err error) error {
	var known *atoll.Error
	var e *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known) && known.Op == "":
		return atoll.Errorf(op, id, known.Kind, "store %s: %w", s.path, known.Err)
	case errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case fsutil.IsFull(err):
		return atoll.Errorf(op, id, atoll.ErrExhausted, "store %s: %w", s.path, err)
	case !errors.As(err, &e):
		return atoll.Errorf(op, id, atoll.KindOf(err), "store %s: %w", s.path, err)
	}
	kind, advice := atoll.ErrInternal, "it cannot be used"
	switch e.Code() & 0xff { // the rest is a detail
	case sqlite3.SQLITE_FULL:
		kind, advice = atoll.ErrExhausted, "the disk is full"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		kind, advice = atoll.ErrUnavailable, "another program has been writing to it for too long"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		kind, advice = atoll.ErrDenied, "it cannot be written to"
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR:
		kind = atoll.ErrUnavailable
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		advice = "it is damaged: move it away, and a new one takes over the sandboxes that are there"
	}
	return atoll.Errorf(op, id, kind, "store %s: %s: %w", s.path, advice, err)
}

// inFile is a SQLite as the Database of its tables.
type inFile struct{ *Store }

// Read implements Database.
func (f inFile) Read(ctx context.Context, do func(context.Context, sqlstore.Querier) error) error {
	db, err := f.open(ctx)
	if err != nil {
		return err
	}
	return do(ctx, db)
}

// Write implements Database. Once begun, it is not broken off at all.
func (f inFile) Write(ctx context.Context, do func(context.Context, sqlstore.Tx) error) error {
	ctx = context.WithoutCancel(ctx)
	db, err := f.open(ctx)
	if err != nil {
		return err
	}
	return within(ctx, db, func(tx *sql.Tx) error { return do(ctx, onlyTx{tx}) })
}

// Failed implements Database.
func (f inFile) Failed(op, id string, err error) error { return f.failed(op, id, err) }

// Taken implements Database.
func (f inFile) Taken(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_CONSTRAINT
}

// onlyTx is a transaction of SQLite, which is the only one that writes.
type onlyTx struct{ *sql.Tx }

func (onlyTx) Lock(context.Context, string) error { return nil }

func (onlyTx) ForUpdate() string { return "" }

var (
	_ store.Store         = (*Store)(nil)
	_ store.Conversations = (*Store)(nil)
	_ store.Keys          = (*Store)(nil)
	_ store.Audit         = (*Store)(nil)
)
