package config

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// Mock has the settings of the provider mock; there are none yet.
type Mock struct{}

func openMock(cfg *Config, opts Options) (atoll.Provider, error) {
	return mock.New(mock.Options{Dir: filepath.Join(cfg.StateDir, "mock"), Log: opts.Log})
}
