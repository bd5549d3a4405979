package stack

import (
	"log/slog"

	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// Bundles opens the store of bundles. The caller must close it.
func (b *Builder) Bundles(log *slog.Logger) (*bundle.Store, error) {
	return bundle.Open(b.BundleDir(), bundle.Options{
		Log:   log,
		Guest: func() ([]byte, error) { return guestprogram.Load(b.Docker.Guest, b.StateDir) },
		Tree:  imageTree(b, log),
	})
}
