package life

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/via"
)

// Files implements atoll.Filer. They can be reached while the box is stopped,
// and are opened for each call, so that a handle holds no resources.
func (b *box) Files() atoll.FS {
	return via.FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		if !b.visible() {
			return atoll.E(op, b.id, atoll.ErrNotFound, nil)
		}
		open, closeAll, err := b.place.open(b.p.volumes)
		if err != nil {
			if !b.visible() {
				return atoll.E(op, b.id, atoll.ErrNotFound, nil)
			}
			return known(op, b.id, err)
		}
		defer closeAll()
		return fn(ctx, open)
	})
}
