package inprocess

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
)

// Files implements atoll.Filer. They can be reached while the box is stopped,
// and are opened for each call, so that a handle holds no resources. A call that meets a
// removal waits for its end: it says that the sandbox is gone, and not that a file is.
func (b *box) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		if err := b.awaitRemoval(ctx); err != nil {
			return err
		}
		if !b.visible() {
			return atoll.E(op, b.id, atoll.ErrNotFound, nil)
		}
		err := b.useFiles(ctx, op, fn)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if err := b.awaitRemoval(ctx); err != nil {
			return err
		}
		if !b.visible() {
			return atoll.E(op, b.id, atoll.ErrNotFound, nil)
		}
		return err
	})
}

// useFiles calls fn with the files as they are now.
func (b *box) useFiles(ctx context.Context, op string, fn func(context.Context, atoll.FS) error) error {
	open, closeAll, err := b.place.open(b.p.volumes)
	if err != nil {
		return known(op, b.id, err)
	}
	defer closeAll()
	return fn(ctx, open)
}

// awaitRemoval waits until a removal that is on has ended, well or not.
func (b *box) awaitRemoval(ctx context.Context) error {
	if !b.removing.Load() {
		return nil
	}
	select {
	case b.busy <- struct{}{}:
		b.release()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
