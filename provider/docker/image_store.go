package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A shelf is a directory that remembers which of the engine's images were fetched
// for sandboxes: the others are not ours to list or to remove.
type imageRecords string

// A kept image is one of them, under one of its names.
type imageRecord struct {
	Ref     string    `json:"ref"`
	Digest  string    `json:"digest"`
	Fetched time.Time `json:"fetched"`
	Used    time.Time `json:"used"`
}

func hashText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

func (s imageRecords) recordPath(ref, digest string) string {
	return filepath.Join(string(s), hashText(ref+" "+digest)+".json")
}

// recordFetched notes that an image was.
func (s imageRecords) recordFetched(ref, digest string) error {
	now := time.Now()
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return err
	}
	return fsutil.WriteJSON(s.recordPath(ref, digest), imageRecord{ref, digest, now, now})
}

// recordUsed notes that an image was asked for, if it is one of ours.
func (s imageRecords) recordUsed(ref, digest string) error {
	data, err := os.ReadFile(s.recordPath(ref, digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var k imageRecord
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err != nil {
		return err
	}
	k.Used = time.Now()
	return fsutil.WriteJSON(s.recordPath(ref, digest), k)
}

func (s imageRecords) forgetImage(k imageRecord) error {
	err := os.Remove(s.recordPath(k.Ref, k.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s imageRecords) listImages() ([]imageRecord, error) {
	entries, err := os.ReadDir(string(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []imageRecord
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		var k imageRecord
		data, err := os.ReadFile(filepath.Join(string(s), e.Name()))
		if err == nil && json.Unmarshal(data, &k) == nil {
			all = append(all, k)
		}
	}
	return all, nil
}

// An exhibit is a kept image that the engine still has.
type fetchedImage struct {
	imageRecord
	image   *image
	hasName bool // the name is still its own
	users   int  // containers that were made from it
	running int  // of these
	foreign int  // of these, that are no sandboxes of ours
}

// fetchedImages looks at all that is kept.
func (p *Provider) fetchedImages(ctx context.Context) ([]fetchedImage, error) {
	all, err := p.imageRecords.listImages()
	if err != nil {
		return nil, err
	}
	containers, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, err
	}
	var list []fetchedImage
	for _, k := range all {
		im, err := p.inspectImage(ctx, k.Ref)
		named := err == nil && im.digest == k.Digest
		if err == nil && !named || cerrdefs.IsNotFound(err) {
			repo, _, _ := strings.Cut(k.Ref, ":")
			im, err = p.inspectImage(ctx, repo+"@"+k.Digest)
		}
		if cerrdefs.IsNotFound(err) {
			if err := p.imageRecords.forgetImage(k); err != nil { // somebody has removed it
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		x := fetchedImage{imageRecord: k, image: im, hasName: named}
		for _, c := range containers.Items {
			if c.ImageID == im.id {
				x.users++
				if c.Labels[labelOwner] != string(p.names) {
					x.foreign++
				}
				if c.State == "running" || c.State == "paused" {
					x.running++
				}
			}
		}
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b fetchedImage) int { return strings.Compare(a.Ref, b.Ref) })
	return list, nil
}

// Images implements atoll.ImageStore.
func (p *Provider) Images(ctx context.Context) ([]atoll.Image, error) {
	all, err := p.fetchedImages(ctx)
	if err != nil {
		return nil, p.wrapError(ctx, "images", "", err)
	}
	list := make([]atoll.Image, len(all))
	for i, x := range all {
		list[i] = atoll.Image{
			Ref: x.Ref, Provider: info.Name, Digest: x.Digest, Platform: x.image.platform, Size: atoll.Bytes(x.image.size), InUse: x.users > 0,
			Fetched: x.Fetched, Used: x.Used,
		}
		if !x.hasName {
			list[i].Ref = x.Digest
		}
	}
	return list, nil
}

// RemoveImage implements atoll.ImageStore.
func (p *Provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	full, err := normalizeRef(ref)
	if err != nil {
		return err
	}
	all, err := p.fetchedImages(ctx)
	if err != nil {
		return p.wrapError(ctx, "remove image", ref, err)
	}
	all = slices.DeleteFunc(all, func(x fetchedImage) bool { return full != x.Digest && (full != x.Ref || !x.hasName) })
	if len(all) == 0 {
		return atoll.Errorf("remove image", ref, atoll.ErrNotExist, "no such image was fetched")
	}
	f, err := p.engineInfo(ctx)
	if err != nil {
		return p.wrapError(ctx, "remove image", ref, err)
	}
	for _, x := range all {
		if x.running > 0 || x.foreign > 0 || x.users > 0 && !force {
			return atoll.Errorf("remove image", ref, atoll.ErrConflict, "%d containers were made from it, of which %d run and %d are no sandboxes", x.users, x.running, x.foreign)
		}
		if x.users > 0 && f.podman {
			return atoll.Errorf("remove image", ref, atoll.ErrConflict, "podman would remove the %d sandboxes that were made from it, too: remove them first", x.users)
		}
	}
	force = force && !f.podman // by which it removes containers, whoever made them
	for _, x := range all {
		if err := p.discardImage(ctx, x, force); err != nil {
			return p.wrapError(ctx, "remove image", ref, err)
		}
	}
	return nil
}

func (p *Provider) discardImage(ctx context.Context, x fetchedImage, force bool) error {
	name := x.Ref
	if !x.hasName {
		name = x.image.id
	}
	_, err := p.engine.ImageRemove(ctx, name, client.ImageRemoveOptions{Force: force, PruneChildren: true})
	if err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	return p.imageRecords.forgetImage(x.imageRecord)
}

// PruneImages implements atoll.ImageStore.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	if opts.UnusedFor < 0 {
		return atoll.Pruned{}, atoll.Errorf("prune images", "", atoll.ErrInvalid, "unused for %s: must not be negative", opts.UnusedFor)
	}
	all, err := p.fetchedImages(ctx)
	if err != nil {
		return atoll.Pruned{}, p.wrapError(ctx, "prune images", "", err)
	}
	var pruned atoll.Pruned
	var first error
	for _, x := range all {
		if x.users > 0 || x.hasName && !opts.All || time.Since(x.Used) < time.Duration(opts.UnusedFor) {
			continue
		}
		err := p.discardImage(ctx, x, false)
		if cerrdefs.IsConflict(err) { // it is in use by now, or under another name
			continue
		}
		if err != nil {
			first = errors.Join(first, err)
			continue
		}
		pruned.Images = append(pruned.Images, x.Digest)
		pruned.Size += atoll.Bytes(x.image.size)
	}
	slices.Sort(pruned.Images)
	return pruned, p.wrapError(ctx, "prune images", "", first)
}

var _ atoll.ImageStore = (*Provider)(nil)
