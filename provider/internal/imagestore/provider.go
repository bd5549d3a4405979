//go:build linux

package imagestore

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
)

// A Provider is a supervised.Provider that shows its images. Providers embed it.
type Provider struct {
	*supervised.Provider
	backend *Backend
}

// NewProvider returns a Provider around p, whose backend has b inside.
func NewProvider(p *supervised.Provider, b *Backend) *Provider { return &Provider{p, b} }

// Prepare implements atoll.Preparer: it pulls the image.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if _, err := spec.Complete(p.Info().Name); err != nil {
		return err
	}
	if IsHost(spec.Image) || spec.Snapshot != "" {
		return nil
	}
	_, err := p.backend.store.GetBy(ctx, spec.Pull, spec.Image, progress)
	return err
}

// Images implements atoll.ImageStore.
func (p *Provider) Images(ctx context.Context) ([]atoll.Image, error) {
	users, err := supervised.ImageUsers(p.Provider)
	if err != nil {
		return nil, err
	}
	all, err := p.backend.store.List(ctx)
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
		return p.backend.store.Remove(ctx, ref, nil)
	}
	users, err := supervised.ImageUsers(p.Provider)
	if err != nil {
		return err
	}
	return p.backend.store.Remove(ctx, ref, keepUsed(ref, users))
}

// PruneImages implements atoll.ImageStore.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	users, err := supervised.ImageUsers(p.Provider)
	if err != nil {
		return atoll.Pruned{}, err
	}
	pruned, err := p.backend.store.Prune(ctx, image.PruneOptions{
		Unused: time.Duration(opts.UnusedFor), Unnamed: !opts.All, Keep: keepUsed("", users),
	})
	return atoll.Pruned{Images: pruned.Images, Size: pruned.Bytes}, err
}

// ResolveImage implements atoll.ImageResolver.
func (p *Provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	if IsHost(ref) {
		return "", ctx.Err()
	}
	return p.backend.store.Digest(ref)
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
	_ atoll.Preparer      = (*Provider)(nil)
	_ atoll.ImageStore    = (*Provider)(nil)
	_ atoll.ImageResolver = (*Provider)(nil)
)
