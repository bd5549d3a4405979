package config

import (
	"errors"
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store/postgres/settings"
)

// Store configures the store of the desired state, changes in progress, secrets, sessions, warm sandboxes, keys, the
// audit log and conversations.
type Store struct {
	URL      string         `yaml:"url" doc:"PostgreSQL database that servers share, instead of a file in state_dir: postgres://user@host/database"`
	Password Secret         `yaml:"password" doc:"password of the database user; if empty, the one that libpq finds"`
	Lease    atoll.Duration `yaml:"lease" doc:"time for which a killed server still counts as running, so that others do not continue its work, like 30s"`
}

func defaultStore() Store { return Store{Lease: atoll.Duration(settings.DefaultLease)} }

// checkValues calls bad with the key of each invalid value.
func (s Store) checkValues(bad func(key string, err error)) {
	if s.Lease < atoll.Duration(settings.MinLease) {
		bad("store.lease", fmt.Errorf("%s: must be at least %s", s.Lease, settings.MinLease))
	}
	switch {
	case s.URL == "" && !s.Password.IsZero():
		bad("store.password", errors.New("requires store.url"))
	case s.URL != "" && settings.HasPassword(s.URL):
		bad("store.url", errors.New("contains a password: use store.password instead"))
	case s.URL != "":
		bad("store.url", settings.CheckURL(s.URL))
	}
}
