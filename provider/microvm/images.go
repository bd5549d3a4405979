package microvm

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
)

// Images implements atoll.ImageStore. An image is kept as the bundle that was built from it;
// of other bundles, which have other users, nothing is told.
func (p *Provider) Images(context.Context) ([]atoll.Image, error) {
	users, err := supervised.ImageUsers(p.Provider)
	if err != nil {
		return nil, err
	}
	all, err := p.backend.opts.Bundles.List()
	if err != nil {
		return nil, err
	}
	list := []atoll.Image{}
	for _, b := range all {
		if b.Root().Image == "" {
			continue
		}
		names := b.Names
		if len(names) == 0 {
			names = []string{b.Digest}
		}
		_, used := users[b.Digest]
		for _, name := range names {
			list = append(list, atoll.Image{
				Ref: name, Provider: p.Info().Name, Digest: b.Digest, Platform: "linux/" + b.Arch, Size: b.Root().Size,
				InUse: used, Fetched: b.Made, Used: b.Used,
			})
		}
	}
	slices.SortFunc(list, func(a, b atoll.Image) int {
		return cmp.Or(strings.Compare(a.Ref, b.Ref), strings.Compare(a.Digest, b.Digest))
	})
	return list, nil
}

// RemoveImage implements atoll.ImageStore.
func (p *Provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	if strings.HasPrefix(ref, "/") {
		return atoll.Errorf("remove image", ref, atoll.ErrInvalid, "no image is called so")
	}
	b, err := p.backend.opts.Bundles.Get(ref)
	if err != nil {
		return err
	}
	if b.Root().Image == "" {
		return atoll.Errorf("remove image", ref, atoll.ErrInvalid, "it was not made from an image: atoll image rm bundle:%s removes it", ref)
	}
	return p.backend.opts.Bundles.Remove(ref, p.keep(ctx, ref, force))
}

// PruneImages implements atoll.ImageStore.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	var pruned atoll.Pruned
	if opts.UnusedFor < 0 {
		return pruned, atoll.Errorf("prune images", "", atoll.ErrInvalid, "unused for %s: must not be negative", opts.UnusedFor)
	}
	all, err := p.backend.opts.Bundles.List()
	if err != nil {
		return pruned, err
	}
	for _, b := range all {
		if b.Root().Image == "" || !opts.All && len(b.Names) > 0 || time.Since(b.Used) < time.Duration(opts.UnusedFor) {
			continue
		}
		err := p.backend.opts.Bundles.Remove(b.Digest, p.keep(ctx, b.Digest, false))
		switch kind := atoll.KindOf(err); {
		case err == nil:
			pruned.Images, pruned.Size = append(pruned.Images, b.Digest), pruned.Size+b.Root().Size
		case kind != atoll.ErrConflict && kind != atoll.ErrNotExist:
			return pruned, err
		}
	}
	return pruned, nil
}

// ResolveImage implements atoll.ImageResolver.
func (p *Provider) ResolveImage(_ context.Context, ref string) (string, error) {
	b, err := p.backend.opts.Bundles.Get(cmp.Or(ref, p.backend.opts.Default))
	if err != nil {
		return "", err
	}
	return b.Digest, nil
}

// keep has the images stay that sandboxes were made from, with force those that run only: the
// others' are made again when they start.
func (p *Provider) keep(ctx context.Context, ref string, force bool) func(digest string) error {
	return func(digest string) error {
		users, err := supervised.ImageUsers(p.Provider)
		if err != nil {
			return err
		}
		user, used := users[digest]
		if used && force {
			user, used, err = p.runs(ctx, digest)
		}
		if err == nil && used {
			err = atoll.Errorf("remove image", ref, atoll.ErrConflict, "%s was made from it: remove that first, or stop it and use force", user)
		}
		return err
	}
}

// runs names a sandbox that runs and was made from a bundle.
func (p *Provider) runs(ctx context.Context, digest string) (user string, found bool, err error) {
	all, err := p.List(ctx, atoll.Filter{States: []atoll.State{atoll.StateCreating, atoll.StateRunning, atoll.StatePaused}})
	for _, st := range all {
		if strings.HasSuffix(st.Image, "@"+digest) {
			return "sandbox " + cmp.Or(st.Spec.Name, st.ID), true, err
		}
	}
	return "", false, err
}

// found is the bundle of a sandbox that was made before. One that has been removed
// meanwhile is made again, and has to be the same: what the sandbox has changed in its root
// file system was changed in that.
func (b *backend) found(ctx context.Context, digest, image string) (*bundle.Bundle, error) {
	im, err := b.opts.Bundles.Get(digest)
	if atoll.KindOf(err) != atoll.ErrNotExist || image == "" {
		return im, err
	}
	again, buildErr := b.bundle(ctx, image, nil)
	if buildErr != nil {
		return nil, errors.Join(err, buildErr)
	}
	if again.Digest != digest {
		return nil, atoll.Errorf("start", "", atoll.ErrNotExist, "what it was made from is not there any more: bundle %s; image %s is another one by now", digest, image)
	}
	return again, nil
}

var (
	_ atoll.ImageStore    = (*Provider)(nil)
	_ atoll.ImageResolver = (*Provider)(nil)
)
