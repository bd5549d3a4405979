package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
	"time"
)

// keyColumns are those of a Key, in the order in which scanKey reads them.
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

// milli is a time as it is kept, 0 for none.
func milli(t time.Time) int64 {
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
	return s.write(ctx, op, k.Name, func(ctx context.Context, tx Tx) error {
		if err := tx.Lock(ctx, "keys"); err != nil {
			return err
		}
		var other string
		err := tx.QueryRowContext(ctx, "SELECT name FROM api_keys WHERE account = ? AND (role <> ? OR projects <> ?) ORDER BY created, id LIMIT 1",
			k.Account, k.Role, string(projects)).Scan(&other)
		if err == nil {
			return atoll.Errorf(op, k.Name, atoll.ErrConflict, "the key %s of the account %s has another role or other projects, and would share conversations with it: name another account", other, k.Account)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO api_keys ("+keyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			k.ID, k.Name, k.Account, k.Role, string(projects), k.Hash, k.OldHash, milli(k.OldUntil), milli(k.Created), milli(k.Rotated), milli(k.Expires), milli(k.Revoked), milli(k.Used))
		if s.db.Taken(err) {
			err = atoll.Errorf(op, k.Name, atoll.ErrAlreadyExists, "there is a key of this name: rotate or remove that, or name this one otherwise")
		}
		return err
	})
}

// noKey is the error of a key that is not there.
func noKey(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrNotExist, "there is no such key")
}

// FindKey implements Keys.
func (s *Store) FindKey(ctx context.Context, id string) (*store.Key, error) {
	if !s.db.Exists() {
		return nil, noKey("find key", id)
	}
	return one(ctx, s, "find key", id, noKey("find key", id), scanKey, "SELECT "+keyColumns+" FROM api_keys WHERE id = ?", id)
}

// Keys implements Keys.
func (s *Store) Keys(ctx context.Context) ([]*store.Key, error) {
	if !s.db.Exists() {
		return nil, nil
	}
	return list(ctx, s, "list keys", scanKey, "SELECT "+keyColumns+" FROM api_keys ORDER BY created, id")
}

// RotateKey implements Keys.
func (s *Store) RotateKey(ctx context.Context, id, hash string, now, until time.Time) (k *store.Key, err error) {
	const op = "rotate key"
	err = s.write(ctx, op, id, func(ctx context.Context, tx Tx) error {
		err := s.changeKey(ctx, tx, op, id, "old_hash = hash, old_until = ?, hash = ?, rotated = ?", milli(until), hash, milli(now))
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
	return s.write(ctx, op, id, func(ctx context.Context, tx Tx) error {
		return s.changeKey(ctx, tx, op, id, "revoked = ?", milli(now))
	})
}

// changeKey changes one that is not revoked.
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
	return s.write(ctx, "use key", id, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE api_keys SET used = ? WHERE id = ? AND used < ?", milli(now), id, milli(now))
		return err
	})
}
