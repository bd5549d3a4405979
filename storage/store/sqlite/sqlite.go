// Package sqlite implements package store in a file, for the programs of one machine.
package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// migrations has a file for each change of the schema, in order. A released file never changes.
//
//go:embed migrations/*.sql
var migrations embed.FS

// A Store is a store in one SQLite file. It opens the file at the first call that needs it.
type Store struct {
	sqlstore.Store
	path string

	mu         sync.Mutex
	closed     bool
	db         *sql.DB // nil before the first use
	holder     *fsutil.Lock
	holderName string // name of holder; valid if holder is not nil

	syncing atomic.Bool // syncSoon will write the commits so far
}

// New returns the store in the file at path. It does not access the file. The first call that needs the file creates
// it, readable only by this user, or fails.
func New(path string) *Store {
	s := &Store{path: path}
	s.Store = sqlstore.New(database{s})
	return s
}

// Path returns the path of the file.
func (s *Store) Path() string { return s.path }

// Exists reports whether the file exists, without opening it.
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
		_ = s.holder.Remove() // an unlocked file means that its holder has ended
		s.holder = nil
	}
	return err
}

// openDB returns the database, and opens it at the first call.
func (s *Store) openDB(ctx context.Context) (*sql.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, atoll.Errorf("open", s.path, atoll.ErrUnavailable, "the store is closed")
	}
	if s.db != nil {
		return s.db, nil
	}
	db, err := s.connectDB(ctx)
	if err != nil {
		return nil, s.wrapError("open", "", err)
	}
	s.db = db
	return db, nil
}

// pragmas make a writer wait for another one for up to 10 seconds. Readers never wait. Commits reach the disk, not
// only the kernel's buffers.
const pragmas = "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"

// connectDB opens the database, creates it if it is missing, and migrates its schema.
func (s *Store) connectDB(ctx context.Context) (*sql.DB, error) {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return nil, err
	}
	// SQLite would create a file that everybody can read; its other files get the mode of this one.
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	f.Close()
	// Two programs cannot turn a new file into a database at once, not even with a busy_timeout.
	lock, err := waitOpenLock(ctx, s.path+".lock")
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	ctx = context.WithoutCancel(ctx) // other callers share the connection
	file := url.URL{Scheme: "file", Path: s.path}
	db, err := sql.Open("sqlite", file.String()+pragmas)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer at a time, and reads are small
	if err := migrateSchema(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// waitOpenLock waits for the lock, but at most 30 seconds: its owner may be a stopped program.
func waitOpenLock(ctx context.Context, path string) (*fsutil.Lock, error) {
	const patience = 30 * time.Second
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lock, err := fsutil.AwaitLock(within, path)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		err = atoll.Errorf("", "", atoll.ErrUnavailable, "another program has been opening the file for more than %s: look for a stopped program", patience)
	}
	return lock, err
}

// migrateSchema brings the schema to the version of this program. Kinds: ErrUnavailable (the schema is newer).
func migrateSchema(ctx context.Context, db *sql.DB) error {
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
			"a newer Atoll wrote this file (schema %d, this program supports %d): upgrade, or use another state_dir", have, len(files))
	}
	for n := have + 1; n <= len(files); n++ {
		text, err := migrations.ReadFile(files[n-1])
		if err != nil {
			return err
		}
		err = inTransaction(ctx, db, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, fmt.Sprintf("%s; PRAGMA user_version = %d", text, n))
			return err
		})
		if err != nil {
			return fmt.Errorf("schema %d: %w", n, err)
		}
	}
	return nil
}

// A beginner is a *sql.DB or a *sql.Conn.
type beginner interface {
	BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
}

// inTransaction runs f in a transaction, which locks the file for writing from the start.
func inTransaction(ctx context.Context, db beginner, f func(*sql.Tx) error) error {
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

// wrapError gives an error of the database its kind and adds advice. It returns nil for nil.
func (s *Store) wrapError(op, id string, err error) error {
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
	kind, advice := atoll.ErrInternal, "unexpected error"
	switch e.Code() & 0xff { // higher bits are details
	case sqlite3.SQLITE_FULL:
		kind, advice = atoll.ErrExhausted, "the disk is full"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		kind, advice = atoll.ErrUnavailable, "another program has locked the file for too long"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		kind, advice = atoll.ErrDenied, "no permission to write the file"
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR:
		kind, advice = atoll.ErrUnavailable, "cannot read or write the file"
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		advice = "the file is damaged: move it away; a new store adopts the existing sandboxes"
	}
	return atoll.Errorf(op, id, kind, "store %s: %s: %w", s.path, advice, err)
}

// database implements sqlstore.Database for a Store.
type database struct{ *Store }

// Read implements Database.
func (f database) Read(ctx context.Context, do func(context.Context, sqlstore.Querier) error) error {
	db, err := f.openDB(ctx)
	if err != nil {
		return err
	}
	return do(ctx, db)
}

// Write implements Database. It ignores the end of ctx.
func (f database) Write(ctx context.Context, do func(context.Context, sqlstore.Tx) error) error {
	ctx = context.WithoutCancel(ctx)
	db, err := f.openDB(ctx)
	if err != nil {
		return err
	}
	return inTransaction(ctx, db, func(tx *sql.Tx) error { return do(ctx, transaction{tx}) })
}

// Note implements Database. It ignores the end of ctx.
func (f database) Note(ctx context.Context, do func(context.Context, sqlstore.Tx) error) (err error) {
	ctx = context.WithoutCancel(ctx)
	db, err := f.openDB(ctx)
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "PRAGMA synchronous = NORMAL"); err != nil { // a commit reaches the disk with a later one
		return err
	}
	defer func() {
		if _, restored := conn.ExecContext(ctx, "PRAGMA synchronous = FULL"); restored != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // nobody uses the connection again
		}
	}()
	if err := inTransaction(ctx, conn, func(tx *sql.Tx) error { return do(ctx, transaction{tx}) }); err != nil {
		return err
	}
	f.syncSoon()
	return nil
}

// syncDelay is the longest time for which a change of Note is not on disk.
const syncDelay = time.Second

// syncSoon has the commits so far reach the disk within syncDelay, in the background.
func (s *Store) syncSoon() {
	if s.syncing.Swap(true) {
		return
	}
	time.AfterFunc(syncDelay, func() {
		s.syncing.Store(false)
		_ = fsutil.SyncFile(s.path + "-wal") // missing if the database has been closed, which writes all; else a later commit reports the error
	})
}

// Failed implements Database.
func (f database) Failed(op, id string, err error) error { return f.wrapError(op, id, err) }

// Taken implements Database.
func (f database) Taken(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_CONSTRAINT
}

// transaction implements sqlstore.Tx. SQLite has one write transaction at a time, so locks are not needed.
type transaction struct{ *sql.Tx }

func (transaction) Lock(context.Context, string) error { return nil }

func (transaction) ForUpdate() string { return "" }

var (
	_ store.Store         = (*Store)(nil)
	_ store.Conversations = (*Store)(nil)
	_ store.Keys          = (*Store)(nil)
	_ store.Audit         = (*Store)(nil)
)
