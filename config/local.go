package config

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
)

// Local has the settings of the provider local; there are none yet.
type Local struct{}

func openLocal(cfg *Config, opts Options) (atoll.Provider, error) {
	return local.New(local.Options{Dir: filepath.Join(cfg.StateDir, "local"), Log: opts.Log})
}
