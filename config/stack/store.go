package stack

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// A database stores all records.
type database interface {
	store.Store
	session.Store
	store.Conversations
	store.Keys
	store.Audit
	Exists() bool
}

// openStore returns the configured store, which connects at its first use.
func openStore(b *Builder) database {
	if b.server == nil {
		return sqlite.New(filepath.Join(b.StateDir, "atoll.db"))
	}
	return b.server.Store()
}

// settlePlace records in a shared database which sandboxes the provider reaches, or compares them with the record.
// Kinds: ErrConflict (other servers reach other sandboxes), and those of a store.
func (b *Builder) settlePlace(ctx context.Context, name string, p atoll.Provider) error {
	if b.server == nil {
		return nil
	}
	place, err := b.placeOf(ctx, name, p)
	if err != nil {
		return err
	}
	s := b.server.Store()
	err = s.Settle(ctx, name, place)
	return errors.Join(err, s.Close())
}

// stateID returns the id of the state directory. The first call creates it.
func (b *Builder) stateID() (string, error) {
	path := filepath.Join(b.StateDir, "id")
	read := func() (string, error) {
		text, err := os.ReadFile(path)
		return strings.TrimSpace(string(text)), err
	}
	id, err := read()
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if err := os.MkdirAll(b.StateDir, 0o700); err != nil {
		return "", err
	}
	lock, err := fsutil.WaitLock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if id, err := read(); !errors.Is(err, fs.ErrNotExist) { // another program was faster
		return id, err
	}
	id = atoll.NewID()
	return id, fsutil.WriteFile(path, []byte(id+"\n"))
}
