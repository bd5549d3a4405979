package sqlstore

import (
	"context"
	"encoding/json"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// sessionColumns lists the columns in the order in which scanSession reads them.
const sessionColumns = "spec, sandbox, state, holder, problem, created, opened, used, rev"

// scanSession reads one row.
func scanSession(row row) (*session.Record, error) {
	var x session.Record
	var spec []byte
	var created, opened, used int64
	err := row.Scan(&spec, &x.Sandbox, &x.State, &x.Holder, &x.Problem, &created, &opened, &used, &x.Rev)
	if err == nil {
		err = json.Unmarshal(spec, &x.Spec)
	}
	if err != nil {
		return nil, err
	}
	x.Created, x.Opened, x.Used = time.UnixMilli(created), time.UnixMilli(opened), time.UnixMilli(used)
	return &x, nil
}

// InsertSession implements Sessions.
func (s *Store) InsertSession(ctx context.Context, x *session.Record) error {
	key := x.Spec.Scope.Key()
	spec, err := json.Marshal(x.Spec)
	if err != nil {
		return atoll.E("open session", key, atoll.ErrInvalid, err)
	}
	err = s.writeTables(ctx, "open session", key, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO sessions (project, key, spec, sandbox, state, holder, problem, created, opened, used, rev)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)`,
			x.Spec.Project, key, string(spec), x.Sandbox, x.State, x.Holder, Text(x.Problem), x.Created.UnixMilli(), x.Opened.UnixMilli(), x.Used.UnixMilli())
		if s.db.Taken(err) {
			return atoll.Errorf("open session", key, atoll.ErrAlreadyExists, "a session with this key already exists")
		}
		return err
	})
	if err == nil {
		x.Rev = 1
	}
	return err
}

// UpdateSession implements Sessions.
func (s *Store) UpdateSession(ctx context.Context, x *session.Record) error {
	key := x.Spec.Scope.Key()
	spec, err := json.Marshal(x.Spec)
	if err != nil {
		return atoll.E("update session", key, atoll.ErrInvalid, err)
	}
	err = s.writeTables(ctx, "update session", key, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sessions SET spec = ?, sandbox = ?, state = ?, holder = ?, problem = ?, created = ?, opened = ?, used = ?, rev = rev + 1
			WHERE project = ? AND key = ? AND rev = ?`,
			string(spec), x.Sandbox, x.State, x.Holder, Text(x.Problem), x.Created.UnixMilli(), x.Opened.UnixMilli(), x.Used.UnixMilli(), x.Spec.Project, key, x.Rev)
		return checkChanged(res, err, "update session", key)
	})
	if err == nil {
		x.Rev++
	}
	return err
}

// DeleteSession implements Sessions.
func (s *Store) DeleteSession(ctx context.Context, x *session.Record) error {
	key := x.Spec.Scope.Key()
	return s.writeTables(ctx, "close session", key, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE project = ? AND key = ? AND rev = ?", x.Spec.Project, key, x.Rev)
		return checkChanged(res, err, "close session", key)
	})
}

// FindSession implements Sessions.
func (s *Store) FindSession(ctx context.Context, project, key string) (*session.Record, error) {
	none := atoll.Errorf("find", key, atoll.ErrNotExist, "project %s has no such session", project)
	return queryOne(ctx, s, "find", key, none, scanSession, "SELECT "+sessionColumns+" FROM sessions WHERE project = ? AND key = ?", project, key)
}

// Sessions implements Sessions.
func (s *Store) Sessions(ctx context.Context, project string) ([]*session.Record, error) {
	return queryAll(ctx, s, "sessions", scanSession, "SELECT "+sessionColumns+" FROM sessions WHERE ? IN ('', project) ORDER BY created, key", project)
}
