package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
	"time"
)

// columns are those of a Record, in the order in which scan reads them.
const columns = "id, scope, provider, spec, state, volumes, holder, reason, created, rev"

// scan reads one row.
func scan(row row) (*store.Record, error) {
	var r store.Record
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
func (s *Store) Insert(ctx context.Context, r *store.Record, secret string, room store.Room) (kept string, err error) {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return "", atoll.E("create", r.ID, atoll.ErrInvalid, err)
	}
	err = s.write(ctx, "create", r.ID, func(ctx context.Context, tx Tx) error {
		if err := free(ctx, tx, r); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (id, scope, provider, project, name, spec, state, volumes, holder, reason, created, rev)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)`,
			r.ID, r.Scope, r.Provider, r.Spec.Project, r.Spec.Name, string(spec), r.State, r.Volumes, r.Holder, Text(r.Reason), r.Created.UnixMilli())
		if s.db.Taken(err) {
			return taken("create", r)
		}
		if err != nil {
			return err
		}
		if err := roomFor(ctx, tx, room.Most); err != nil {
			return err
		}
		if err := roomIn(ctx, tx, r, room.Quota); err != nil {
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
// of whatever scope; nobody else gives the name away until the transaction ends. Of
// one scope an index sees to it.
func free(ctx context.Context, tx Tx, r *store.Record) error {
	if r.Spec.Name == "" || r.State != store.Creating {
		return nil
	}
	if err := tx.Lock(ctx, "name "+r.Spec.Project+"/"+r.Spec.Name); err != nil {
		return err
	}
	var n int
	err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes WHERE project = ? AND name = ? AND name <> ''", r.Spec.Project, r.Spec.Name).Scan(&n)
	if err == nil && n > 0 {
		err = taken("create", r)
	}
	return err
}

// roomFor is ErrExhausted when there are more than most records, if that is not 0.
func roomFor(ctx context.Context, tx Tx, most int) error {
	if most <= 0 {
		return nil
	}
	// What another one has inserted does not count before it is committed.
	if err := tx.Lock(ctx, "room"); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes").Scan(&n); err != nil {
		return err
	}
	if n > most {
		return atoll.Errorf("create", "", atoll.ErrExhausted, "%d sandboxes are written down already: %w", n-1, store.ErrLimit)
	}
	return nil
}

// keep is KeepSecret within a transaction.
func keep(ctx context.Context, tx Tx, scope, id, secret string) (kept string, err error) {
	err = tx.QueryRowContext(ctx, `INSERT INTO secrets (id, scope, raw) VALUES (?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET raw = secrets.raw RETURNING raw`, id, scope, secret).Scan(&kept)
	return kept, err
}

func taken(op string, r *store.Record) error {
	return atoll.Errorf(op, r.ID, atoll.ErrAlreadyExists, "a sandbox with this id or name is written down already")
}

// Update implements Sandboxes.
func (s *Store) Update(ctx context.Context, r *store.Record) error {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return atoll.E("update", r.ID, atoll.ErrInvalid, err)
	}
	err = s.write(ctx, "update", r.ID, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET scope = ?, provider = ?, project = ?, name = ?, spec = ?, state = ?, volumes = ?, holder = ?, reason = ?, rev = rev + 1
			WHERE id = ? AND rev = ?`,
			r.Scope, r.Provider, r.Spec.Project, r.Spec.Name, string(spec), r.State, r.Volumes, r.Holder, Text(r.Reason), r.ID, r.Rev)
		if s.db.Taken(err) {
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
func (s *Store) Delete(ctx context.Context, r *store.Record, secret bool) error {
	return s.write(ctx, "delete", r.ID, func(ctx context.Context, tx Tx) error {
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
func (s *Store) Forget(ctx context.Context, r *store.Record) error {
	return s.write(ctx, "delete", r.ID, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM sandboxes WHERE id = ? AND rev = ?", r.ID, r.Rev)
		if err := changed(res, err, "delete", r.ID); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM gone WHERE since < ?", since()); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO gone (id, since) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET since = excluded.since", r.ID, time.Now().UnixMilli())
		return err
	})
}

// Forgotten implements Sandboxes.
func (s *Store) Forgotten(ctx context.Context, id string) (bool, error) {
	n, err := one(ctx, s, "find", id, nil, scanned[int], "SELECT count(*) FROM gone WHERE id = ? AND since >= ?", id, since())
	return n > 0, err
}

// Find implements Sandboxes.
func (s *Store) Find(ctx context.Context, id string) (*store.Record, error) {
	return s.one(ctx, id, "SELECT "+columns+" FROM sandboxes WHERE id = ?", id)
}

// Named implements Sandboxes.
func (s *Store) Named(ctx context.Context, scope, project, name string) (*store.Record, error) {
	return s.one(ctx, name, "SELECT "+columns+" FROM sandboxes WHERE project = ? AND name = ? AND name <> '' ORDER BY scope <> ?, created, id LIMIT 1",
		project, name, scope)
}

func (s *Store) one(ctx context.Context, what, query string, args ...any) (*store.Record, error) {
	return one(ctx, s, "find", what, atoll.E("find", what, atoll.ErrNotFound, nil), scan, query, args...)
}

// Records implements Sandboxes.
func (s *Store) Records(ctx context.Context) ([]*store.Record, error) {
	return list(ctx, s, "list", scan, "SELECT "+columns+" FROM sandboxes ORDER BY created, id")
}

// InState implements Sandboxes.
func (s *Store) InState(ctx context.Context, scope string, state store.State) ([]*store.Record, error) {
	if !s.db.Exists() {
		return nil, nil
	}
	return list(ctx, s, "list", scan, "SELECT "+columns+" FROM sandboxes WHERE scope = ? AND state = ? ORDER BY created, id", scope, state)
}

// Provider implements Sandboxes.
func (s *Store) Provider(ctx context.Context, id string) (name string, found bool, err error) {
	name, err = one(ctx, s, "find", id, nil, scanned[string], "SELECT provider FROM sandboxes WHERE id = ? AND provider <> ''", id)
	return name, name != "", err
}

// Identity implements Store.
func (s *Store) Identity(ctx context.Context) (store.Identity, error) {
	scan := func(row row) (i store.Identity, err error) {
		var born int64
		err = row.Scan(&i.ID, &born)
		i.Born = time.UnixMilli(born)
		return i, err
	}
	return one(ctx, s, "open", "", sql.ErrNoRows, scan, "SELECT id, born FROM identity")
}
