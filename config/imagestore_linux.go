package config

import (
	"context"
	"io"
	"path/filepath"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image"
)

// An imageStore is the store that the provider gvisor has its images in, opened when it is
// first needed.
type imageStore struct {
	cfg  *Config
	opts Options

	mu    sync.Mutex
	store *image.Store
}

// save returns an image as an archive, by the name as. It is pulled when it is missing.
func (s *imageStore) save(ctx context.Context, ref, as string, progress func(atoll.Progress)) (io.ReadCloser, error) {
	store, err := s.open()
	if err != nil {
		return nil, err
	}
	im, err := store.Get(ctx, ref, progress)
	if err != nil {
		return nil, err
	}
	return store.Save(ctx, im, as)
}

func (s *imageStore) open() (*image.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store != nil {
		return s.store, nil
	}
	opts := imageOptions(s.cfg.Image)
	opts.Log = s.opts.Log
	store, err := image.Open(filepath.Join(s.cfg.StateDir, "gvisor", "images"), opts)
	if err == nil {
		s.store = store
	}
	return store, err
}

func (s *imageStore) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}
