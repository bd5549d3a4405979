//go:build !linux

package stack

import (
	"context"
	"io"

	"github.com/seed46cd37a8/atoll"
)

// An imageStore has no images except on Linux, which can unpack them. On other systems, the engines in the machines
// pull images.
type imageStore struct {
	builder *Builder
	opts    Options
}

func (s *imageStore) saveImage(_ context.Context, ref, _ string, _ atoll.PullPolicy, _ func(atoll.Progress)) (io.ReadCloser, error) {
	return nil, atoll.Errorf("image", ref, atoll.ErrUnsupported, "no Docker Engine on this machine has the image, and only Linux can unpack images")
}

func (s *imageStore) closeImages() error { return nil }
