package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// keyColumns lists the columns in the order in which scanKey reads them.
const keyColumns = "id, name, account, role, projects, hash, old_hash, old_until, created, rotated, expires, revoked, used"

// scanKey reads one row.
func scanKey(row row) (*store.Key, error) {
	var k store.Key
	var projects []byte
	times := []*time.Time{&k.OldUntil, &k.Created, &k.Rotated, &k.Expires, &k.Revoked, &k.Used}
	ms := make([]int64, len(times))
	err := row.Scan(&k.ID, &k.Name, &k.Account, &k.Role, &projects, &k.Hash, &k.OldHash, &ms[0], &ms[1], &ms[2], &ms[3], &ms[4], &ms[5])
	if err == nil {
		err = json.Unmarshal(projects, &k.Projects)
	}
	if err != nil {
		return nil, err
	}
	for i, t := range times {
		if ms[i] != 0 {
			*t = time.UnixMilli(ms[i])
		}
	}
	return &k, nil
}

// unixMilliOrZero returns t in milliseconds since 1970, or 0 if t is zero.
func unixMilliOrZero(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// InsertKey implements Keys.
func (s *Store) InsertKey(ctx context.Context, k *store.Key) error {
	const op = "create key"
	projects, err := json.Marshal(k.Projects)
	if err != nil {
		return atoll.E(op, k.Name, atoll.ErrInvalid, err)
	}
	return s.writeTables(ctx, op, k.Name, func(ctx context.Context, tx Tx) error {
		if err := tx.Lock(ctx, "keys"); err != nil {
			return err
		}
		var other string
		err := tx.QueryRowContext(ctx, "SELECT name FROM api_keys WHERE account = ? AND (role <> ? OR projects <> ?) ORDER BY created, id LIMIT 1",
			k.Account, k.Role, string(projects)).Scan(&other)
		if err == nil {
			return atoll.Errorf(op, k.Name, atoll.ErrConflict, "key %s of account %s has another role or other projects, but would share its conversations: use another account", other, k.Account)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO api_keys ("+keyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			k.ID, k.Name, k.Account, k.Role, string(projects), k.Hash, k.OldHash, unixMilliOrZero(k.OldUntil), unixMilliOrZero(k.Created), unixMilliOrZero(k.Rotated), unixMilliOrZero(k.Expires), unixMilliOrZero(k.Revoked), unixMilliOrZero(k.Used))
		if s.db.Taken(err) {
			err = atoll.Errorf(op, k.Name, atoll.ErrAlreadyExists, "a key with this name already exists: rotate it, remove it, or use another name")
		}
		return err
	})
}

// noKey returns the error for a missing key.
func noKey(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrNotExist, "no such key")
}

// FindKey implements Keys.
func (s *Store) FindKey(ctx context.Context, id string) (*store.Key, error) {
	if !s.db.Exists() {
		return nil, noKey("find key", id)
	}
	return queryOne(ctx, s, "find key", id, noKey("find key", id), scanKey, "SELECT "+keyColumns+" FROM api_keys WHERE id = ?", id)
}

// Keys implements Keys.
func (s *Store) Keys(ctx context.Context) ([]*store.Key, error) {
	if !s.db.Exists() {
		return nil, nil
	}
	return queryAll(ctx, s, "list keys", scanKey, "SELECT "+keyColumns+" FROM api_keys ORDER BY created, id")
}

// RotateKey implements Keys.
func (s *Store) RotateKey(ctx context.Context, id, hash string, now, until time.Time) (k *store.Key, err error) {
	const op = "rotate key"
	err = s.writeTables(ctx, op, id, func(ctx context.Context, tx Tx) error {
		err := s.changeKey(ctx, tx, op, id, "old_hash = hash, old_until = ?, hash = ?, rotated = ?", unixMilliOrZero(until), hash, unixMilliOrZero(now))
		if err == nil {
			k, err = scanKey(tx.QueryRowContext(ctx, "SELECT "+keyColumns+" FROM api_keys WHERE id = ?", id))
		}
		return err
	})
	return k, err
}

// RevokeKey implements Keys.
func (s *Store) RevokeKey(ctx context.Context, id string, now time.Time) error {
	const op = "remove key"
	return s.writeTables(ctx, op, id, func(ctx context.Context, tx Tx) error {
		return s.changeKey(ctx, tx, op, id, "revoked = ?", unixMilliOrZero(now))
	})
}

// changeKey updates a key that is not revoked. Kinds: ErrNotExist.
func (s *Store) changeKey(ctx context.Context, tx Tx, op, id, set string, args ...any) error {
	res, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE api_keys SET %s WHERE id = ? AND revoked = 0", set), append(args, id)...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = noKey(op, id)
	}
	return err
}

// UseKey implements Keys.
func (s *Store) UseKey(ctx context.Context, id string, now time.Time) error {
	return s.writeTables(ctx, "use key", id, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE api_keys SET used = ? WHERE id = ? AND used < ?", unixMilliOrZero(now), id, unixMilliOrZero(now))
		return err
	})
}
