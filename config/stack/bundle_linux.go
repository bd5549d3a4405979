package stack

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// imageTree returns a function that gives images to the builder of bundles, from the store that the provider gvisor
// uses.
func imageTree(b *Builder, log *slog.Logger) func(context.Context, string, atoll.PullPolicy, func(atoll.Progress)) (*bundle.Tree, error) {
	return func(ctx context.Context, ref string, policy atoll.PullPolicy, progress func(atoll.Progress)) (*bundle.Tree, error) {
		opts := imageOptions(b.Image)
		opts.Log = log
		store, err := image.Open(filepath.Join(b.StateDir, "gvisor", "images"), opts)
		if err != nil {
			return nil, err
		}
		img, err := store.GetBy(ctx, policy, ref, progress)
		if err != nil {
			return nil, errors.Join(err, store.Close())
		}
		hold, err := img.Hold()
		if err != nil {
			return nil, errors.Join(err, store.Close())
		}
		return &bundle.Tree{
			Dir: img.Root, Digest: img.Digest, Owners: store.Owners(),
			Config: bundle.Config{Env: img.Env, Entrypoint: img.Entrypoint, Cmd: img.Cmd, User: img.User, Workdir: img.Workdir},
			Close:  func() error { return errors.Join(hold.Close(), store.Close()) },
		}, nil
	}
}
