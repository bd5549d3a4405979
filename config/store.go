package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/postgres"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// Store configures the store of the desired state, changes in progress, secrets, sessions, warm sandboxes, keys, the
// audit log and conversations.
type Store struct {
	URL      string         `yaml:"url" doc:"PostgreSQL database that servers share, instead of a file in state_dir: postgres://user@host/database"`
	Password Secret         `yaml:"password" doc:"password of the database user; if empty, the one that libpq finds"`
	Lease    atoll.Duration `yaml:"lease" doc:"time for which a killed server still counts as running, so that others do not continue its work, like 30s"`
}

func defaultStore() Store { return Store{Lease: atoll.Duration(postgres.DefaultLease)} }

// checkValues calls bad with the key of each invalid value.
func (s Store) checkValues(bad func(key string, err error)) {
	if s.Lease < atoll.Duration(postgres.MinLease) {
		bad("store.lease", fmt.Errorf("%s: must be at least %s", s.Lease, postgres.MinLease))
	}
	switch {
	case s.URL == "" && !s.Password.IsZero():
		bad("store.password", errors.New("requires store.url"))
	case s.URL != "" && postgres.HasPassword(s.URL):
		bad("store.url", errors.New("contains a password: use store.password instead"))
	case s.URL != "":
		bad("store.url", postgres.CheckURL(s.URL))
	}
}

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
func openStore(cfg *Config) database {
	if cfg.server == nil {
		return sqlite.New(filepath.Join(cfg.StateDir, "atoll.db"))
	}
	return cfg.server.Store()
}

// newServer returns the configured database server, or nil if the store is a file. All stores of the server share its
// connections.
func (c *Config) newServer() (*postgres.Server, error) {
	if c.Store.URL == "" {
		return nil, nil
	}
	opts := postgres.Options{URL: c.Store.URL, Lease: time.Duration(c.Store.Lease)}
	if !c.Store.Password.IsZero() {
		opts.Password = c.Store.Password.Reveal
	}
	return postgres.New(opts)
}

// settlePlace records in a shared database which sandboxes the provider reaches, or compares them with the record.
// Kinds: ErrConflict (other servers reach other sandboxes), and those of a store.
func (c *Config) settlePlace(ctx context.Context, name string, p atoll.Provider) error {
	if c.server == nil {
		return nil
	}
	place, err := c.placeOf(ctx, name, p)
	if err != nil {
		return err
	}
	s := c.server.Store()
	err = s.Settle(ctx, name, place)
	return errors.Join(err, s.Close())
}

// isUnix reports whether the address of an engine is a Unix socket of this machine.
func isUnix(host string) bool { return strings.HasPrefix(host, "unix:") }

// stateID returns the id of the state directory. The first call creates it.
func (c *Config) stateID() (string, error) {
	path := filepath.Join(c.StateDir, "id")
	read := func() (string, error) {
		text, err := os.ReadFile(path)
		return strings.TrimSpace(string(text)), err
	}
	id, err := read()
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
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
