package config

import (
	"path/filepath"
)

// BundleDir returns the directory of the bundles.
func (c *Config) BundleDir() string { return filepath.Join(c.StateDir, "bundles") }
