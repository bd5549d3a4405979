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
type shelf string

// A kept image is one of them, under one of its names.
type kept struct {
	Ref     string    `json:"ref"`
	Digest  string    `json:"digest"`
	Fetched time.Time `json:"fetched"`
	Used    time.Time `json:"used"`
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

func (s shelf) path(ref, digest string) string {
	return filepath.Join(string(s), hash(ref+" "+digest)+".json")
}

// fetched notes that an image was.
func (s shelf) fetched(ref, digest string) error {
	now := time.Now()
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return err
	}
	return fsutil.WriteJSON(s.path(ref, digest), kept{ref, digest, now, now})
}

// used notes that an image was asked for, if it is one of ours.
func (s shelf) used(ref, digest string) error {
	data, err := os.ReadFile(s.path(ref, digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var k kept
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err != nil {
		return err
	}
	k.Used = time.Now()
	return fsutil.WriteJSON(s.path(ref, digest), k)
}

func (s shelf) forget(k kept) error {
	err := os.Remove(s.path(k.Ref, k.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s shelf) list() ([]kept, error) {
	entries, err := os.ReadDir(string(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []kept
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		var k kept
		data, err := os.ReadFile(filepath.Join(string(s), e.Name()))
		if err == nil && json.Unmarshal(data, &k) == nil {
			all = append(all, k)
		}
	}
	return all, nil
}

// An exhibit is a kept image that the engine still has.
type exhibit struct {
	kept
	image   *image
	named   bool // the name is still its own
	users   int  // containers that were made from it
	running int  // of these
	others  int  // of these, that are no sandboxes of ours
}

// exhibits looks at all that is kept.
func (p *Provider) exhibits(ctx context.Context) ([]exhibit, error) {
	all, err := p.shelf.list()
	if err != nil {
		return nil, err
	}
	containers, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, err
	}
	var list []exhibit
	for _, k := range all {
		im, err := p.inspectImage(ctx, k.Ref)
		named := err == nil && im.digest == k.Digest
		if err == nil && !named || cerrdefs.IsNotFound(err) {
			repo, _, _ := strings.Cut(k.Ref, ":")
			im, err = p.inspectImage(ctx, repo+"@"+k.Digest)
		}
		if cerrdefs.IsNotFound(err) {
			if err := p.shelf.forget(k); err != nil { // somebody has removed it
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		x := exhibit{kept: k, image: im, named: named}
		for _, c := range containers.Items {
			if c.ImageID == im.id {
				x.users++
				if c.Labels[labelOwner] != string(p.names) {
					x.others++
				}
				if c.State == "running" || c.State == "paused" {
					x.running++
				}
			}
		}
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b exhibit) int { return strings.Compare(a.Ref, b.Ref) })
	return list, nil
}

// Images implements atoll.ImageStore.
func (p *Provider) Images(ctx context.Context) ([]atoll.Image, error) {
	all, err := p.exhibits(ctx)
	if err != nil {
		return nil, p.failed(ctx, "images", "", err)
	}
	list := make([]atoll.Image, len(all))
	for i, x := range all {
		list[i] = atoll.Image{
			Ref: x.Ref, Provider: info.Name, Digest: x.Digest, Platform: x.image.platform, Size: atoll.Bytes(x.image.size), InUse: x.users > 0,
			Fetched: x.Fetched, Used: x.Used,
		}
		if !x.named {
			list[i].Ref = x.Digest
		}
	}
	return list, nil
}

// RemoveImage implements atoll.ImageStore.
func (p *Provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	full, err := normal(ref)
	if err != nil {
		return err
	}
	all, err := p.exhibits(ctx)
	if err != nil {
		return p.failed(ctx, "remove image", ref, err)
	}
	all = slices.DeleteFunc(all, func(x exhibit) bool { return full != x.Digest && (full != x.Ref || !x.named) })
	if len(all) == 0 {
		return atoll.Errorf("remove image", ref, atoll.ErrNotExist, "no such image was fetched")
	}
	f, err := p.facts(ctx)
	if err != nil {
		return p.failed(ctx, "remove image", ref, err)
	}
	for _, x := range all {
		if x.running > 0 || x.others > 0 || x.users > 0 && !force {
			return atoll.Errorf("remove image", ref, atoll.ErrConflict, "%d containers were made from it, of which %d run and %d are no sandboxes", x.users, x.running, x.others)
		}
		if x.users > 0 && f.podman {
			return atoll.Errorf("remove image", ref, atoll.ErrConflict, "podman would remove the %d sandboxes that were made from it, too: remove them first", x.users)
		}
	}
	force = force && !f.podman // by which it removes containers, whoever made them
	for _, x := range all {
		if err := p.discard(ctx, x, force); err != nil {
			return p.failed(ctx, "remove image", ref, err)
		}
	}
	return nil
}

func (p *Provider) discard(ctx context.Context, x exhibit, force bool) error {
	name := x.Ref
	if !x.named {
		name = x.image.id
	}
	_, err := p.engine.ImageRemove(ctx, name, client.ImageRemoveOptions{Force: force, PruneChildren: true})
	if err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	return p.shelf.forget(x.kept)
}

// PruneImages implements atoll.ImageStore.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	if opts.UnusedFor < 0 {
		return atoll.Pruned{}, atoll.Errorf("prune images", "", atoll.ErrInvalid, "unused for %s: must not be negative", opts.UnusedFor)
	}
	all, err := p.exhibits(ctx)
	if err != nil {
		return atoll.Pruned{}, p.failed(ctx, "prune images", "", err)
	}
	var pruned atoll.Pruned
	var first error
	for _, x := range all {
		if x.users > 0 || x.named && !opts.All || time.Since(x.Used) < time.Duration(opts.UnusedFor) {
			continue
		}
		err := p.discard(ctx, x, false)
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
	return pruned, p.failed(ctx, "prune images", "", first)
}

var _ atoll.ImageStore = (*Provider)(nil)
