package stack

import (
	"context"
	"io"
	"path/filepath"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image"
)

// An imageStore is the image store of the provider gvisor. It is opened at the first use.
type imageStore struct {
	builder *Builder
	opts    Options

	mu    sync.Mutex
	store *image.Store
}

// saveImage returns the image ref as an archive, with the name as. It pulls a missing image.
func (s *imageStore) saveImage(ctx context.Context, ref, as string, policy atoll.PullPolicy, progress func(atoll.Progress)) (io.ReadCloser, error) {
	store, err := s.openImages()
	if err != nil {
		return nil, err
	}
	im, err := store.GetBy(ctx, policy, ref, progress)
	if err != nil {
		return nil, err
	}
	return store.Save(ctx, im, as)
}

// openImages returns the store, and opens it at the first call.
func (s *imageStore) openImages() (*image.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store != nil {
		return s.store, nil
	}
	opts := imageOptions(s.builder.Image)
	opts.Log = s.opts.Log
	store, err := image.Open(filepath.Join(s.builder.StateDir, "gvisor", "images"), opts)
	if err == nil {
		s.store = store
	}
	return store, err
}

// closeImages closes the store if it is open.
func (s *imageStore) closeImages() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}
