//go:build linux

package gvisor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/image"
)

// Images implements atoll.ImageStore.
func (p *Provider) Images(ctx context.Context) ([]atoll.Image, error) {
	users, err := p.imageUsers()
	if err != nil {
		return nil, err
	}
	all, err := p.images.List(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]atoll.Image, 0, len(all))
	for _, img := range all {
		_, used := users[img.Digest]
		list = append(list, atoll.Image{
			Ref: img.Ref, Provider: p.info.Name, Digest: img.Digest, Platform: img.Platform, Size: img.Size,
			InUse: used, Fetched: img.Unpacked, Used: img.Used,
		})
	}
	return list, nil
}

// RemoveImage implements atoll.ImageStore.
func (p *Provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	if force { // what runs holds its image all the same
		return p.images.Remove(ctx, ref, nil)
	}
	users, err := p.imageUsers()
	if err != nil {
		return err
	}
	return p.images.Remove(ctx, ref, keep(ref, users))
}

// PruneImages implements atoll.ImageStore.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	users, err := p.imageUsers()
	if err != nil {
		return atoll.Pruned{}, err
	}
	pruned, err := p.images.Prune(ctx, image.PruneOptions{
		Unused: time.Duration(opts.UnusedFor), Unnamed: !opts.All, Keep: keep("", users),
	})
	return atoll.Pruned{Images: pruned.Images, Size: pruned.Bytes}, err
}

// ResolveImage implements atoll.ImageResolver.
func (p *Provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	if isHost(ref) {
		return "", ctx.Err()
	}
	return p.images.Digest(ref)
}

// keep has the images stay that have users.
func keep(ref string, users map[string]string) image.Keep {
	return func(digest string) error {
		if user, ok := users[digest]; ok {
			return atoll.Errorf("remove image", ref, atoll.ErrConflict, "%s was made from it: remove that first, or use force", user)
		}
		return nil
	}
}

// imageUsers tells for the digest of each image that is in use who uses it: a
// sandbox, whether it runs or not, or a snapshot.
func (p *Provider) imageUsers() (map[string]string, error) {
	users := map[string]string{}
	snapshots, err := p.dir.SnapshotIDs()
	if err != nil {
		return nil, atoll.E("images", "", atoll.ErrInternal, err)
	}
	for _, id := range snapshots {
		if r, err := p.readSnapshot(id); err == nil { // else it is gone, or nothing can start from it
			users[r.Record.Digest] = "snapshot " + id
		}
	}
	ids, err := p.dir.IDs()
	if err != nil {
		return nil, atoll.E("images", "", atoll.ErrInternal, err)
	}
	for _, id := range ids {
		rec, err := p.dir.Read(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, atoll.E("images", id, atoll.ErrInternal, err)
		}
		users[rec.Digest] = "sandbox " + cmp.Or(rec.Status.Spec.Name, id)
	}
	delete(users, "") // of the host's file system, and of directories
	return users, nil
}

var (
	_ atoll.ImageStore    = (*Provider)(nil)
	_ atoll.ImageResolver = (*Provider)(nil)
)
