//go:build !linux

package bundle

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Builds says that bundles can be built on this system.
const Builds = false

// Build is ErrUnsupported: bundles are built on Linux.
func (s *Store) Build(ctx context.Context, r Recipe, progress func(atoll.Progress)) (*Bundle, error) {
	return nil, atoll.Errorf("build", r.Name, atoll.ErrUnsupported, "bundles are built on Linux: build one there, and atoll image pull it here")
}
