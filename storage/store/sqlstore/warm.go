package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// warmColumns lists the columns in the order in which scanWarm reads them.
const warmColumns = "id, scope, pool, project, holder, made, name, labels, ttl, claimed"

// scanWarm reads one row.
func scanWarm(row row) (*store.Warm, error) {
	var w store.Warm
	var labels []byte
	var made int64
	var claimed sql.NullInt64
	err := row.Scan(&w.ID, &w.Scope, &w.Pool, &w.Project, &w.Holder, &made, &w.Name, &labels, &w.TTL, &claimed)
	if err == nil {
		err = json.Unmarshal(labels, &w.Labels)
	}
	if err != nil {
		return nil, err
	}
	w.Made = time.UnixMilli(made)
	if claimed.Valid {
		w.Claimed = time.UnixMilli(claimed.Int64)
	}
	return &w, nil
}

// InsertWarm implements Stock.
func (s *Store) InsertWarm(ctx context.Context, w *store.Warm) error {
	return s.writeTables(ctx, "make", w.ID, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO warm (id, scope, pool, project, holder, made, name, labels, ttl) VALUES (?, ?, ?, ?, ?, ?, '', 'null', 0)",
			w.ID, w.Scope, w.Pool, w.Project, w.Holder, w.Made.UnixMilli())
		if s.db.Taken(err) {
			return atoll.Errorf("make", w.ID, atoll.ErrAlreadyExists, "a sandbox with this id already exists")
		}
		return err
	})
}

// ClaimWarm implements Stock.
func (s *Store) ClaimWarm(ctx context.Context, w *store.Warm) error {
	labels, err := json.Marshal(w.Labels)
	if err != nil {
		return atoll.E("claim", w.ID, atoll.ErrInvalid, err)
	}
	err = s.writeTables(ctx, "claim", w.ID, func(ctx context.Context, tx Tx) error {
		if err := reserveName(ctx, tx, &store.Record{ID: w.ID, Spec: atoll.Spec{Name: w.Name, Project: w.Project}, State: store.Creating}); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, "UPDATE warm SET holder = '', name = ?, labels = ?, ttl = ?, claimed = ? WHERE id = ? AND holder = ? AND claimed IS NULL",
			w.Name, string(labels), int64(w.TTL), w.Claimed.UnixMilli(), w.ID, w.Holder)
		if s.db.Taken(err) {
			return atoll.Errorf("claim", w.Name, atoll.ErrAlreadyExists, "a sandbox with this name already exists")
		}
		return checkChanged(res, err, "claim", w.ID)
	})
	if err == nil {
		w.Holder = ""
	}
	return err
}

// DropWarm implements Stock.
func (s *Store) DropWarm(ctx context.Context, id string) error {
	if !s.db.Exists() {
		return nil
	}
	return s.writeTables(ctx, "drop", id, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM warm WHERE id = ?", id)
		return err
	})
}

// FindWarm implements Stock.
func (s *Store) FindWarm(ctx context.Context, id string) (*store.Warm, error) {
	return s.queryWarm(ctx, id, "SELECT "+warmColumns+" FROM warm WHERE id = ?", id)
}

// WarmNamed implements Stock.
func (s *Store) WarmNamed(ctx context.Context, project, name string) (*store.Warm, error) {
	return s.queryWarm(ctx, name, "SELECT "+warmColumns+" FROM warm WHERE project = ? AND name = ? AND name <> ''", project, name)
}

func (s *Store) queryWarm(ctx context.Context, what, query string, args ...any) (*store.Warm, error) {
	none := atoll.Errorf("find", what, atoll.ErrNotExist, "no such warm sandbox")
	if !s.db.Exists() {
		return nil, none
	}
	return queryOne(ctx, s, "find", what, none, scanWarm, query, args...)
}

// Warm implements Stock.
func (s *Store) Warm(ctx context.Context, scope string) ([]*store.Warm, error) {
	if !s.db.Exists() {
		return nil, nil
	}
	return queryAll(ctx, s, "list", scanWarm, "SELECT "+warmColumns+" FROM warm WHERE scope = ? ORDER BY made, id", scope)
}
