//go:build !linux

package bundle

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Builds reports whether this system can build bundles.
const Builds = false

// Build returns ErrUnsupported: only Linux can build bundles.
func (s *Store) Build(ctx context.Context, r Recipe, progress func(atoll.Progress)) (*Bundle, error) {
	return nil, atoll.Errorf("build", r.Name, atoll.ErrUnsupported, "only Linux can build bundles: build one there, and run atoll image pull here")
}

// MissingPackages returns nil: no package makes this system build bundles.
func MissingPackages(Recipe) []string { return nil }
