package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// recordColumns lists the columns in the order in which scanRecord reads them.
const recordColumns = "id, scope, provider, spec, state, volumes, holder, reason, created, rev"

// scanRecord reads one row.
func scanRecord(row row) (*store.Record, error) {
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
func (s *Store) Insert(ctx context.Context, r *store.Record, secret string, room store.Limits) (kept string, err error) {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return "", atoll.E("create", r.ID, atoll.ErrInvalid, err)
	}
	err = s.writeTables(ctx, "create", r.ID, func(ctx context.Context, tx Tx) error {
		if err := reserveName(ctx, tx, r); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (id, scope, provider, project, name, spec, state, volumes, holder, reason, created, rev)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)`,
			r.ID, r.Scope, r.Provider, r.Spec.Project, r.Spec.Name, string(spec), r.State, r.Volumes, r.Holder, Text(r.Reason), r.Created.UnixMilli())
		if s.db.Taken(err) {
			return recordExistsError("create", r)
		}
		if err != nil {
			return err
		}
		if err := checkRecordLimit(ctx, tx, room.Most); err != nil {
			return err
		}
		if err := checkQuota(ctx, tx, r, room.Quota); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM gone WHERE id = ?", r.ID); err != nil {
			return err
		}
		if secret == "" {
			return nil
		}
		kept, err = insertSecret(ctx, tx, r.Scope, r.ID, secret)
		return err
	})
	if err != nil {
		return "", err
	}
	r.Rev = 1
	return kept, nil
}

// reserveName returns ErrAlreadyExists if r is about to be created with the name of a record of any scope. Until the
// transaction ends, no other one can take the name. Within a scope, a unique index protects the name.
func reserveName(ctx context.Context, tx Tx, r *store.Record) error {
	if r.Spec.Name == "" || r.State != store.Creating {
		return nil
	}
	if err := tx.Lock(ctx, "name "+r.Spec.Project+"/"+r.Spec.Name); err != nil {
		return err
	}
	var n int
	err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes WHERE project = ? AND name = ? AND name <> ''", r.Spec.Project, r.Spec.Name).Scan(&n)
	if err == nil && n > 0 {
		err = recordExistsError("create", r)
	}
	return err
}

// checkRecordLimit returns ErrExhausted if there are more than most records. 0 is no limit.
func checkRecordLimit(ctx context.Context, tx Tx, most int) error {
	if most <= 0 {
		return nil
	}
	// Inserts of other transactions do not count before they are committed, so wait for those.
	if err := tx.Lock(ctx, "room"); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes").Scan(&n); err != nil {
		return err
	}
	if n > most {
		return atoll.Errorf("create", "", atoll.ErrExhausted, "the store has %d sandboxes: %w", n-1, store.ErrLimit)
	}
	return nil
}

// insertSecret is KeepSecret within a transaction.
func insertSecret(ctx context.Context, tx Tx, scope, id, secret string) (kept string, err error) {
	err = tx.QueryRowContext(ctx, `INSERT INTO secrets (id, scope, raw) VALUES (?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET raw = secrets.raw RETURNING raw`, id, scope, secret).Scan(&kept)
	return kept, err
}

func recordExistsError(op string, r *store.Record) error {
	return atoll.Errorf(op, r.ID, atoll.ErrAlreadyExists, "a sandbox with this id or name already exists")
}

// Update implements Sandboxes.
func (s *Store) Update(ctx context.Context, r *store.Record) error {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return atoll.E("update", r.ID, atoll.ErrInvalid, err)
	}
	run := s.db.Write
	if r.State == store.Present { // a reconcile finds that out again
		run = s.db.Note
	}
	err = s.changeTables(ctx, "update", r.ID, run, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET scope = ?, provider = ?, project = ?, name = ?, spec = ?, state = ?, volumes = ?, holder = ?, reason = ?, rev = rev + 1
			WHERE id = ? AND rev = ?`,
			r.Scope, r.Provider, r.Spec.Project, r.Spec.Name, string(spec), r.State, r.Volumes, r.Holder, Text(r.Reason), r.ID, r.Rev)
		if s.db.Taken(err) {
			return recordExistsError("update", r)
		}
		if err := checkChanged(res, err, "update", r.ID); err != nil {
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
	return s.writeTables(ctx, "delete", r.ID, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM sandboxes WHERE id = ? AND rev = ?", r.ID, r.Rev)
		if err := checkChanged(res, err, "delete", r.ID); err != nil || !secret {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM secrets WHERE id = ?", r.ID)
		return err
	})
}

// forgottenTTL is the time for which the store remembers sandboxes that disappeared from their provider.
const forgottenTTL = 30 * 24 * time.Hour

// forgottenCutoff returns the time before which the store forgets such sandboxes, in milliseconds since 1970.
func forgottenCutoff() int64 { return time.Now().Add(-forgottenTTL).UnixMilli() }

// Forget implements Sandboxes.
func (s *Store) Forget(ctx context.Context, r *store.Record) error {
	return s.writeTables(ctx, "delete", r.ID, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM sandboxes WHERE id = ? AND rev = ?", r.ID, r.Rev)
		if err := checkChanged(res, err, "delete", r.ID); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM gone WHERE since < ?", forgottenCutoff()); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO gone (id, since) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET since = excluded.since", r.ID, time.Now().UnixMilli())
		return err
	})
}

// Forgotten implements Sandboxes.
func (s *Store) Forgotten(ctx context.Context, id string) (bool, error) {
	n, err := queryOne(ctx, s, "find", id, nil, scanColumn[int], "SELECT count(*) FROM gone WHERE id = ? AND since >= ?", id, forgottenCutoff())
	return n > 0, err
}

// Find implements Sandboxes.
func (s *Store) Find(ctx context.Context, id string) (*store.Record, error) {
	return s.findRecord(ctx, id, "SELECT "+recordColumns+" FROM sandboxes WHERE id = ?", id)
}

// Named implements Sandboxes.
func (s *Store) Named(ctx context.Context, scope, project, name string) (*store.Record, error) {
	return s.findRecord(ctx, name, "SELECT "+recordColumns+" FROM sandboxes WHERE project = ? AND name = ? AND name <> '' ORDER BY scope <> ?, created, id LIMIT 1",
		project, name, scope)
}

func (s *Store) findRecord(ctx context.Context, what, query string, args ...any) (*store.Record, error) {
	return queryOne(ctx, s, "find", what, atoll.E("find", what, atoll.ErrNotFound, nil), scanRecord, query, args...)
}

// Records implements Sandboxes.
func (s *Store) Records(ctx context.Context) ([]*store.Record, error) {
	return queryAll(ctx, s, "list", scanRecord, "SELECT "+recordColumns+" FROM sandboxes ORDER BY created, id")
}

// InState implements Sandboxes.
func (s *Store) InState(ctx context.Context, scope string, state store.State) ([]*store.Record, error) {
	if !s.db.Exists() {
		return nil, nil
	}
	return queryAll(ctx, s, "list", scanRecord, "SELECT "+recordColumns+" FROM sandboxes WHERE scope = ? AND state = ? ORDER BY created, id", scope, state)
}

// Provider implements Sandboxes.
func (s *Store) Provider(ctx context.Context, id string) (name string, found bool, err error) {
	name, err = queryOne(ctx, s, "find", id, nil, scanColumn[string], "SELECT provider FROM sandboxes WHERE id = ? AND provider <> ''", id)
	return name, name != "", err
}

// Identity implements Store.
func (s *Store) Identity(ctx context.Context) (store.Identity, error) {
	scan := func(row row) (i store.Identity, err error) {
		var born int64
		err = row.Scan(&i.ID, &born)
		i.Created = time.UnixMilli(born)
		return i, err
	}
	return queryOne(ctx, s, "open", "", sql.ErrNoRows, scan, "SELECT id, born FROM identity")
}
