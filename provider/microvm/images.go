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

// Images implements atoll.ImageStore. Images are stored as the bundles built from them; Images
// omits other bundles, which have other users.
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
		return atoll.Errorf("remove image", ref, atoll.ErrInvalid, "an image name does not begin with /")
	}
	b, err := p.backend.opts.Bundles.Get(ref)
	if err != nil {
		return err
	}
	if b.Root().Image == "" {
		return atoll.Errorf("remove image", ref, atoll.ErrInvalid, "not made from an image: use atoll image rm bundle:%s", ref)
	}
	return p.backend.opts.Bundles.Remove(ref, p.refuseUsed(ctx, ref, force))
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
		err := p.backend.opts.Bundles.Remove(b.Digest, p.refuseUsed(ctx, b.Digest, false))
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

// refuseUsed returns a function that refuses to remove an image with sandboxes; with force only one
// with running sandboxes: stopped ones build it again when they start.
func (p *Provider) refuseUsed(ctx context.Context, ref string, force bool) func(digest string) error {
	return func(digest string) error {
		users, err := supervised.ImageUsers(p.Provider)
		if err != nil {
			return err
		}
		user, used := users[digest]
		if used && force {
			user, used, err = p.runningUser(ctx, digest)
		}
		if err == nil && used {
			err = atoll.Errorf("remove image", ref, atoll.ErrConflict, "%s was made from it: remove that first, or stop it and use force", user)
		}
		return err
	}
}

// runningUser names a running sandbox that was made from a bundle.
func (p *Provider) runningUser(ctx context.Context, digest string) (user string, found bool, err error) {
	all, err := p.List(ctx, atoll.Filter{States: []atoll.State{atoll.StateCreating, atoll.StateRunning, atoll.StatePaused}})
	for _, st := range all {
		if strings.HasSuffix(st.Image, "@"+digest) {
			return "sandbox " + cmp.Or(st.Spec.Name, st.ID), true, err
		}
	}
	return "", false, err
}

// rebuildBundle returns the bundle of an existing sandbox. It builds a removed bundle again, and
// fails if the result differs: the sandbox's changes of its root file system need the same bundle.
func (b *backend) rebuildBundle(ctx context.Context, digest, image string) (*bundle.Bundle, error) {
	im, err := b.opts.Bundles.Get(digest)
	if atoll.KindOf(err) != atoll.ErrNotExist || image == "" {
		return im, err
	}
	again, buildErr := b.ensureBundle(ctx, image, "", nil)
	if buildErr != nil {
		return nil, errors.Join(err, buildErr)
	}
	if again.Digest != digest {
		return nil, atoll.Errorf("start", "", atoll.ErrNotExist, "bundle %s was removed, and image %s has changed since: the sandbox cannot start", digest, image)
	}
	return again, nil
}

var (
	_ atoll.ImageStore    = (*Provider)(nil)
	_ atoll.ImageResolver = (*Provider)(nil)
)
