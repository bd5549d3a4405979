package config

import (
	"log/slog"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// BundleDir returns the directory of the bundles.
func (c *Config) BundleDir() string { return filepath.Join(c.StateDir, "bundles") }

// Bundles opens the store of bundles. The caller must close it.
func (c *Config) Bundles(log *slog.Logger) (*bundle.Store, error) {
	return bundle.Open(c.BundleDir(), bundle.Options{
		Log:   log,
		Guest: func() ([]byte, error) { return guestprogram.Load(c.Docker.Guest, c.StateDir) },
		Tree:  imageTree(c, log),
	})
}
