package config

import (
	"log/slog"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// BundleDir is where Bundles keeps them.
func (c *Config) BundleDir() string { return filepath.Join(c.StateDir, "bundles") }

// Bundles opens the store of what virtual machines boot, for who closes it.
func (c *Config) Bundles(log *slog.Logger) (*bundle.Store, error) {
	return bundle.Open(c.BundleDir(), bundle.Options{
		Log:   log,
		Guest: func() ([]byte, error) { return guestprogram.Load(c.Docker.Guest, c.StateDir) },
		Tree:  imageTree(c, log),
	})
}
