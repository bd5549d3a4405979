//go:build !linux

package dirfs

import (
	"context"
	"iter"

	"github.com/seed46cd37a8/atoll"
)

// Watch implements atoll.FS. It fails with ErrUnsupported on this system.
func (f *FS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return func(yield func(atoll.FileEvent, error) bool) {
		yield(atoll.FileEvent{}, atoll.E("watch", name, atoll.ErrUnsupported, nil))
	}
}
