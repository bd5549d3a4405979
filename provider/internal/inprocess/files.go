package inprocess

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
)

// Files implements atoll.Filer. Files are available while the sandbox is stopped. Each call opens them
// anew, so that the returned FS holds no resources. A call during a removal waits for its end, so that
// it returns ErrNotFound for the sandbox instead of ErrNotExist for a file.
func (s *sandbox) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		if err := s.awaitRemoval(ctx); err != nil {
			return err
		}
		if !s.isVisible() {
			return atoll.E(op, s.id, atoll.ErrNotFound, nil)
		}
		err := s.useFiles(ctx, op, fn)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if err := s.awaitRemoval(ctx); err != nil {
			return err
		}
		if !s.isVisible() {
			return atoll.E(op, s.id, atoll.ErrNotFound, nil)
		}
		return err
	})
}

// useFiles opens the files for the duration of fn.
func (s *sandbox) useFiles(ctx context.Context, op string, fn func(context.Context, atoll.FS) error) error {
	open, closeAll, err := s.place.openFiles(s.p.volumes)
	if err != nil {
		return wrapError(op, s.id, err)
	}
	defer closeAll()
	return fn(ctx, open)
}

// awaitRemoval waits for the end of a removal that is in progress, successful or not.
func (s *sandbox) awaitRemoval(ctx context.Context) error {
	if !s.removing.Load() {
		return nil
	}
	select {
	case s.busy <- struct{}{}:
		s.endOperation()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
