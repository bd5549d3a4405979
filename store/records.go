package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// columns are those of a Record, in the order in which scan reads them.
const columns = "id, scope, provider, spec, state, volumes, holder, reason, created, rev"

// scan reads one row.
func scan(row interface{ Scan(...any) error }) (*Record, error) {
	var r Record
	var spec []byte
	var created int64
	err := row.Scan(&r.ID, &r.Scope, &r.Provider, &spec, &r.State, &r.Volumes, &r.Holder, &r.Reason, &created, &r.Rev)
	if err == nil {
		err = json.Unmarshal(spec, &r.Spec)
	}
	if err != nil {
		return nil, err
	}
	r.Created = time.UnixMilli(created)
	return &r, nil
}

// Insert implements Sandboxes.
func (s *SQLite) Insert(ctx context.Context, r *Record, secret string, most int) (kept string, err error) {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return "", atoll.E("create", r.ID, atoll.ErrInvalid, err)
	}
	err = s.write(ctx, "create", r.ID, func(ctx context.Context, tx *sql.Tx) error {
		if err := free(ctx, tx, r); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (id, scope, provider, project, name, spec, state, volumes, holder, reason, created, rev)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)`,
			r.ID, r.Scope, r.Provider, r.Spec.Project, r.Spec.Name, string(spec), r.State, r.Volumes, r.Holder, r.Reason, r.Created.UnixMilli())
		if isTaken(err) {
			return taken("create", r)
		}
		if err != nil {
			return err
		}
		if err := room(ctx, tx, most); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM gone WHERE id = ?", r.ID); err != nil {
			return err
		}
		if secret == "" {
			return nil
		}
		kept, err = keep(ctx, tx, r.Scope, r.ID, secret)
		return err
	})
	if err != nil {
		return "", err
	}
	r.Rev = 1
	return kept, nil
}

// free is ErrAlreadyExists when r is about to be made with the name of another,
// of whatever scope; the transaction is the only one that writes. Of one scope an
// index sees to it.
func free(ctx context.Context, tx *sql.Tx, r *Record) error {
	if r.Spec.Name == "" || r.State != Creating {
		return nil
	}
	var n int
	err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes WHERE project = ? AND name = ? AND name <> ''", r.Spec.Project, r.Spec.Name).Scan(&n)
	if err == nil && n > 0 {
		err = taken("create", r)
	}
	return err
}

// room is ErrExhausted when there are more than most records, if that is not 0.
func room(ctx context.Context, tx *sql.Tx, most int) error {
	if most <= 0 {
		return nil
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes").Scan(&n); err != nil {
		return err
	}
	if n > most {
		return atoll.Errorf("create", "", atoll.ErrExhausted, "%d sandboxes are written down already: %w", n-1, ErrLimit)
	}
	return nil
}

// keep is KeepSecret within a transaction.
func keep(ctx context.Context, tx *sql.Tx, scope, id, secret string) (kept string, err error) {
	_, err = tx.ExecContext(ctx, "INSERT INTO secrets (id, scope, raw) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", id, scope, secret)
	if err == nil {
		err = tx.QueryRowContext(ctx, "SELECT raw FROM secrets WHERE id = ?", id).Scan(&kept)
	}
	return kept, err
}

func taken(op string, r *Record) error {
	return atoll.Errorf(op, r.ID, atoll.ErrAlreadyExists, "a sandbox with this id or name is written down already")
}

// Update implements Sandboxes.
func (s *SQLite) Update(ctx context.Context, r *Record) error {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return atoll.E("update", r.ID, atoll.ErrInvalid, err)
	}
	err = s.write(ctx, "update", r.ID, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET scope = ?, provider = ?, project = ?, name = ?, spec = ?, state = ?, volumes = ?, holder = ?, reason = ?, rev = rev + 1
			WHERE id = ? AND rev = ?`,
			r.Scope, r.Provider, r.Spec.Project, r.Spec.Name, string(spec), r.State, r.Volumes, r.Holder, r.Reason, r.ID, r.Rev)
		if isTaken(err) {
			return taken("update", r)
		}
		if err := changed(res, err, "update", r.ID); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE secrets SET scope = ? WHERE id = ? AND scope <> ?", r.Scope, r.ID, r.Scope)
		return err
	})
	if err == nil {
		r.Rev++
	}
	return err
}

// Delete implements Sandboxes.
func (s *SQLite) Delete(ctx context.Context, r *Record, secret bool) error {
	return s.write(ctx, "delete", r.ID, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM sandboxes WHERE id = ? AND rev = ?", r.ID, r.Rev)
		if err := changed(res, err, "delete", r.ID); err != nil || !secret {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM secrets WHERE id = ?", r.ID)
		return err
	})
}

// remembered is how long it is known that a sandbox was there which has gone
// without us.
const remembered = 30 * 24 * time.Hour

// since is the time from which on that is remembered.
func since() int64 { return time.Now().Add(-remembered).UnixMilli() }

// Forget implements Sandboxes.
func (s *SQLite) Forget(ctx context.Context, r *Record) error {
	return s.write(ctx, "delete", r.ID, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM sandboxes WHERE id = ? AND rev = ?", r.ID, r.Rev)
		if err := changed(res, err, "delete", r.ID); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM gone WHERE since < ?", since()); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT OR REPLACE INTO gone (id, since) VALUES (?, ?)", r.ID, time.Now().UnixMilli())
		return err
	})
}

// Forgotten implements Sandboxes.
func (s *SQLite) Forgotten(ctx context.Context, id string) (bool, error) {
	db, err := s.open(ctx)
	if err != nil {
		return false, err
	}
	var n int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM gone WHERE id = ? AND since >= ?", id, since()).Scan(&n)
	return n > 0, s.failed("find", id, err)
}

// changed is ErrConflict if nothing was.
func changed(res sql.Result, err error, op, id string) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = atoll.E(op, id, atoll.ErrConflict, ErrChanged)
	}
	return err
}

// Find implements Sandboxes.
func (s *SQLite) Find(ctx context.Context, id string) (*Record, error) {
	return s.one(ctx, id, "SELECT "+columns+" FROM sandboxes WHERE id = ?", id)
}

// Named implements Sandboxes.
func (s *SQLite) Named(ctx context.Context, scope, project, name string) (*Record, error) {
	return s.one(ctx, name, "SELECT "+columns+" FROM sandboxes WHERE project = ? AND name = ? AND name <> '' ORDER BY scope <> ?, created, id LIMIT 1",
		project, name, scope)
}

func (s *SQLite) one(ctx context.Context, what, query string, args ...any) (*Record, error) {
	db, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	r, err := scan(db.QueryRowContext(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, atoll.E("find", what, atoll.ErrNotFound, nil)
	}
	return r, s.failed("find", what, err)
}

// Records implements Sandboxes.
func (s *SQLite) Records(ctx context.Context) ([]*Record, error) {
	return s.all(ctx, "SELECT "+columns+" FROM sandboxes ORDER BY created, id")
}

// InState implements Sandboxes.
func (s *SQLite) InState(ctx context.Context, scope string, state State) ([]*Record, error) {
	if !s.Exists() {
		return nil, nil
	}
	return s.all(ctx, "SELECT "+columns+" FROM sandboxes WHERE scope = ? AND state = ? ORDER BY created, id", scope, state)
}

func (s *SQLite) all(ctx context.Context, query string, args ...any) ([]*Record, error) {
	db, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, s.failed("list", "", err)
	}
	defer rows.Close()
	var all []*Record
	for rows.Next() {
		r, err := scan(rows)
		if err != nil {
			return nil, s.failed("list", "", err)
		}
		all = append(all, r)
	}
	return all, s.failed("list", "", rows.Err())
}

// Provider implements Sandboxes.
func (s *SQLite) Provider(ctx context.Context, id string) (name string, found bool, err error) {
	db, err := s.open(ctx)
	if err != nil {
		return "", false, err
	}
	err = db.QueryRowContext(ctx, "SELECT provider FROM sandboxes WHERE id = ? AND provider <> ''", id).Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return name, err == nil, s.failed("find", id, err)
}

// Identity implements Store.
func (s *SQLite) Identity(ctx context.Context) (Identity, error) {
	db, err := s.open(ctx)
	if err != nil {
		return Identity{}, err
	}
	var i Identity
	var born int64
	err = db.QueryRowContext(ctx, "SELECT id, born FROM identity").Scan(&i.ID, &born)
	i.Born = time.UnixMilli(born)
	return i, s.failed("open", "", err)
}
