//go:build linux

package gvisor

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
)

// Images implements atoll.ImageStore.
func (p *Provider) Images(ctx context.Context) ([]atoll.Image, error) {
	users, err := supervised.ImageUsers(p.Provider)
	if err != nil {
		return nil, err
	}
	all, err := p.backend.images.List(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]atoll.Image, 0, len(all))
	for _, img := range all {
		_, used := users[img.Digest]
		list = append(list, atoll.Image{
			Ref: img.Ref, Provider: p.Info().Name, Digest: img.Digest, Platform: img.Platform, Size: img.Size,
			InUse: used, Fetched: img.Unpacked, Used: img.Used,
		})
	}
	return list, nil
}

// RemoveImage implements atoll.ImageStore.
func (p *Provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	if force { // a running sandbox still holds its image
		return p.backend.images.Remove(ctx, ref, nil)
	}
	users, err := supervised.ImageUsers(p.Provider)
	if err != nil {
		return err
	}
	return p.backend.images.Remove(ctx, ref, keepUsed(ref, users))
}

// PruneImages implements atoll.ImageStore.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	users, err := supervised.ImageUsers(p.Provider)
	if err != nil {
		return atoll.Pruned{}, err
	}
	pruned, err := p.backend.images.Prune(ctx, image.PruneOptions{
		Unused: time.Duration(opts.UnusedFor), Unnamed: !opts.All, Keep: keepUsed("", users),
	})
	return atoll.Pruned{Images: pruned.Images, Size: pruned.Bytes}, err
}

// ResolveImage implements atoll.ImageResolver.
func (p *Provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	if isHost(ref) {
		return "", ctx.Err()
	}
	return p.backend.images.Digest(ref)
}

// keepUsed returns a function that refuses to remove images that have users.
func keepUsed(ref string, users map[string]string) image.Keep {
	return func(digest string) error {
		if user, ok := users[digest]; ok {
			return atoll.Errorf("remove image", ref, atoll.ErrConflict, "%s was made from it: remove that first, or use force", user)
		}
		return nil
	}
}

var (
	_ atoll.ImageStore    = (*Provider)(nil)
	_ atoll.ImageResolver = (*Provider)(nil)
)
