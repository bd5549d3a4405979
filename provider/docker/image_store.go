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

// imageRecords is a directory with a record of each image that was fetched for a sandbox. Atoll
// lists and removes only these images of an engine.
type imageRecords string

// An imageRecord is the record of a fetched image, under one of its names.
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

// recordFetched records that an image was fetched.
func (s imageRecords) recordFetched(ref, digest string) error {
	now := time.Now()
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return err
	}
	return fsutil.WriteJSON(s.recordPath(ref, digest), imageRecord{ref, digest, now, now})
}

// recordUsed records that an image was used, if it has a record.
func (s imageRecords) recordUsed(ref, digest string) error {
	data, err := os.ReadFile(s.recordPath(ref, digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var rec imageRecord
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err != nil {
		return err
	}
	rec.Used = time.Now()
	return fsutil.WriteJSON(s.recordPath(ref, digest), rec)
}

func (s imageRecords) forgetImage(rec imageRecord) error {
	err := os.Remove(s.recordPath(rec.Ref, rec.Digest))
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
		var rec imageRecord
		data, err := os.ReadFile(filepath.Join(string(s), e.Name()))
		if err == nil && json.Unmarshal(data, &rec) == nil {
			all = append(all, rec)
		}
	}
	return all, nil
}

// A fetchedImage is an image with a record that the engine still has.
type fetchedImage struct {
	imageRecord
	image   *image
	hasName bool // Ref still names this image
	users   int  // containers made from it
	running int  // those of users that run
	foreign int  // those of users that are not this server's sandboxes
}

// fetchedImages returns all fetched images by name. It deletes the records of images that the
// engine no longer has.
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
	for _, rec := range all {
		im, err := p.inspectImage(ctx, rec.Ref)
		named := err == nil && im.digest == rec.Digest
		if err == nil && !named || cerrdefs.IsNotFound(err) {
			repo, _, _ := strings.Cut(rec.Ref, ":")
			im, err = p.inspectImage(ctx, repo+"@"+rec.Digest)
		}
		if cerrdefs.IsNotFound(err) {
			if err := p.imageRecords.forgetImage(rec); err != nil { // somebody else has removed the image
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		img := fetchedImage{imageRecord: rec, image: im, hasName: named}
		for _, c := range containers.Items {
			if c.ImageID == im.id {
				img.users++
				if c.Labels[labelOwner] != string(p.names) {
					img.foreign++
				}
				if c.State == "running" || c.State == "paused" {
					img.running++
				}
			}
		}
		list = append(list, img)
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
	for i, img := range all {
		list[i] = atoll.Image{
			Ref: img.Ref, Provider: info.Name, Digest: img.Digest, Platform: img.image.platform, Size: atoll.Bytes(img.image.size), InUse: img.users > 0,
			Fetched: img.Fetched, Used: img.Used,
		}
		if !img.hasName {
			list[i].Ref = img.Digest
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
	all = slices.DeleteFunc(all, func(img fetchedImage) bool { return full != img.Digest && (full != img.Ref || !img.hasName) })
	if len(all) == 0 {
		return atoll.Errorf("remove image", ref, atoll.ErrNotExist, "no such image was fetched")
	}
	engine, err := p.engineInfo(ctx)
	if err != nil {
		return p.wrapError(ctx, "remove image", ref, err)
	}
	for _, img := range all {
		if img.running > 0 || img.foreign > 0 || img.users > 0 && !force {
			return atoll.Errorf("remove image", ref, atoll.ErrConflict, "%d containers use it; %d of them run, and %d are not sandboxes", img.users, img.running, img.foreign)
		}
		if img.users > 0 && engine.podman {
			return atoll.Errorf("remove image", ref, atoll.ErrConflict, "podman would also remove the %d sandboxes that use it: remove them first", img.users)
		}
	}
	force = force && !engine.podman // by force, Podman also removes the containers
	for _, img := range all {
		if err := p.discardImage(ctx, img, force); err != nil {
			return p.wrapError(ctx, "remove image", ref, err)
		}
	}
	return nil
}

func (p *Provider) discardImage(ctx context.Context, img fetchedImage, force bool) error {
	name := img.Ref
	if !img.hasName {
		name = img.image.id
	}
	_, err := p.engine.ImageRemove(ctx, name, client.ImageRemoveOptions{Force: force, PruneChildren: true})
	if err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	return p.imageRecords.forgetImage(img.imageRecord)
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
	for _, img := range all {
		if img.users > 0 || img.hasName && !opts.All || time.Since(img.Used) < time.Duration(opts.UnusedFor) {
			continue
		}
		err := p.discardImage(ctx, img, false)
		if cerrdefs.IsConflict(err) { // it is in use now, or has another name
			continue
		}
		if err != nil {
			first = errors.Join(first, err)
			continue
		}
		pruned.Images = append(pruned.Images, img.Digest)
		pruned.Size += atoll.Bytes(img.image.size)
	}
	slices.Sort(pruned.Images)
	return pruned, p.wrapError(ctx, "prune images", "", first)
}

var _ atoll.ImageStore = (*Provider)(nil)
