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

// Store says where it is written down which sandboxes there are meant to be, what is being
// done to them, their secrets, sessions, stock, and conversations.
type Store struct {
	URL      string         `yaml:"url" doc:"database of PostgreSQL that servers share, in place of a file in state_dir: postgres://user@host/database"`
	Password Secret         `yaml:"password" doc:"password of its user; without, what PostgreSQL's own programs use"`
	Lease    atoll.Duration `yaml:"lease" doc:"how long a server that was killed counts as one that runs, and others leave what it was doing, like 30s"`
}

func defaultStore() Store { return Store{Lease: atoll.Duration(postgres.DefaultLease)} }

// check calls bad with the key of each value that makes no sense.
func (s Store) check(bad func(key string, err error)) {
	if s.Lease < atoll.Duration(postgres.MinLease) {
		bad("store.lease", fmt.Errorf("%s: must be %s at least", s.Lease, postgres.MinLease))
	}
	switch {
	case s.URL == "" && !s.Password.IsZero():
		bad("store.password", errors.New("goes with store.url"))
	case s.URL != "" && postgres.HasPassword(s.URL):
		bad("store.url", errors.New("has a password: refer to it with store.password"))
	case s.URL != "":
		bad("store.url", postgres.CheckURL(s.URL))
	}
}

// A database is where all is written down.
type database interface {
	store.Store
	session.Store
	store.Conversations
	store.Keys
	store.Audit
	Exists() bool
}

// openStore opens nothing yet.
func openStore(cfg *Config) database {
	if cfg.server == nil {
		return sqlite.New(filepath.Join(cfg.StateDir, "atoll.db"))
	}
	return cfg.server.Store()
}

// newServer is the server of the database that the configuration names, nil if it is in a
// file. All that is opened of it shares its connections.
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

// settle sees to it that the sandboxes of a provider that are written down in a database
// are those that this machine has. Kinds: ErrConflict (they are another one's), and those
// of a store.
func (c *Config) settle(ctx context.Context, name string, p atoll.Provider) error {
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

// isUnix reports whether the address of an engine is that of a socket of this machine.
func isUnix(host string) bool { return strings.HasPrefix(host, "unix:") }

// stateID is drawn when a state directory has none yet.
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
	if id, err := read(); !errors.Is(err, fs.ErrNotExist) { // somebody was faster
		return id, err
	}
	id = atoll.NewID()
	return id, fsutil.WriteFile(path, []byte(id+"\n"))
}
