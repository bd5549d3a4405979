//go:build !linux

package config

import (
	"context"
	"io"

	"github.com/seed46cd37a8/atoll"
)

// An imageStore has no images but on Linux, where they can be unpacked: elsewhere the engines
// in machines pull theirs.
type imageStore struct {
	cfg  *Config
	opts Options
}

func (s *imageStore) save(_ context.Context, ref, _ string, _ func(atoll.Progress)) (io.ReadCloser, error) {
	return nil, atoll.Errorf("image", ref, atoll.ErrUnsupported, "it is not in a Docker Engine of this machine, and images are unpacked on Linux only")
}

func (s *imageStore) close() error { return nil }
