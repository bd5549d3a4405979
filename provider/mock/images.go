package mock

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// images are those that were asked for, in a file. There is every image whose
// name can be one, and nothing in it.
type images struct {
	path string

	mu   sync.Mutex
	kept map[string]atoll.Image // by Ref
}

func openImages(dir string) (*images, error) {
	im := &images{path: filepath.Join(dir, "images.json"), kept: map[string]atoll.Image{}}
	b, err := os.ReadFile(im.path)
	if err == nil {
		err = json.Unmarshal(b, &im.kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.E("open", im.path, atoll.ErrInternal, err)
	}
	return im, nil
}

// change changes what is kept, and writes it down.
func (im *images) change(f func(kept map[string]atoll.Image) error) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	if err := f(im.kept); err != nil {
		return err
	}
	b, err := json.Marshal(im.kept)
	if err == nil {
		err = os.WriteFile(im.path+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(im.path+".new", im.path)
	}
	if err != nil {
		return atoll.E("images", im.path, atoll.ErrInternal, err)
	}
	return nil
}

// fetch makes the image be there.
func (im *images) fetch(ref string) error {
	if !validRef(ref) {
		return atoll.Errorf("image", ref, atoll.ErrInvalid, "not the name of an image: write it like python:3.11-slim")
	}
	return im.change(func(kept map[string]atoll.Image) error {
		img, ok := kept[ref]
		if !ok {
			digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref)))
			img = atoll.Image{Ref: ref, Digest: digest, Platform: "linux/mock", Fetched: time.Now()}
		}
		img.Used = time.Now()
		kept[ref] = img
		return nil
	})
}

func validRef(ref string) bool {
	word := func(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
	for _, c := range []byte(ref) {
		if !word(c) && !strings.ContainsRune("._-/:@", rune(c)) {
			return false
		}
	}
	return ref != "" && word(ref[0])
}

// Prepare implements atoll.Preparer.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if _, err := spec.MadeBy(p.Info().Name); err != nil {
		return err
	}
	if spec.Image == "" || spec.Image == defaultImage {
		return ctx.Err()
	}
	if progress != nil {
		progress(atoll.Progress{Phase: "pull", Item: spec.Image})
	}
	return p.images.fetch(spec.Image)
}

// Images implements atoll.ImageStore.
func (p *Provider) Images(ctx context.Context) ([]atoll.Image, error) {
	used, err := p.usedImages(ctx)
	if err != nil {
		return nil, err
	}
	p.images.mu.Lock()
	defer p.images.mu.Unlock()
	var list []atoll.Image
	for ref, img := range p.images.kept {
		_, img.InUse = used[ref]
		img.Provider = p.Info().Name
		list = append(list, img)
	}
	slices.SortFunc(list, func(a, b atoll.Image) int { return strings.Compare(a.Ref, b.Ref) })
	return list, nil
}

// ResolveImage implements atoll.ImageResolver.
func (p *Provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	if ref == "" || ref == defaultImage {
		return "", ctx.Err()
	}
	if !validRef(ref) {
		return "", atoll.Errorf("resolve image", ref, atoll.ErrInvalid, "not the name of an image")
	}
	p.images.mu.Lock()
	defer p.images.mu.Unlock()
	img, ok := p.images.kept[ref]
	if !ok {
		return "", atoll.Errorf("resolve image", ref, atoll.ErrNotExist, "no such image was fetched")
	}
	return img.Digest, nil
}

// usedImages names the images that sandboxes were made from, and whether one of
// those runs.
func (p *Provider) usedImages(ctx context.Context) (running map[string]bool, err error) {
	all, err := p.Provider.List(ctx, atoll.Filter{})
	if err != nil {
		return nil, err
	}
	running = map[string]bool{}
	for _, st := range all {
		running[st.Spec.Image] = running[st.Spec.Image] || st.State == atoll.StateRunning
	}
	return running, nil
}

// RemoveImage implements atoll.ImageStore.
func (p *Provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	if !validRef(ref) {
		return atoll.Errorf("remove image", ref, atoll.ErrInvalid, "not the name of an image")
	}
	used, err := p.usedImages(ctx)
	if err != nil {
		return err
	}
	return p.images.change(func(kept map[string]atoll.Image) error {
		for _, img := range kept {
			if img.Ref != ref && img.Digest != ref {
				continue
			}
			if running, made := used[img.Ref]; running || made && !force {
				return atoll.Errorf("remove image", ref, atoll.ErrConflict, "a sandbox was made from it: remove that first")
			}
			delete(kept, img.Ref)
			return nil
		}
		return atoll.E("remove image", ref, atoll.ErrNotExist, nil)
	})
}

// PruneImages implements atoll.ImageStore. Every image has a name.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	pruned := atoll.Pruned{Images: []string{}}
	used, err := p.usedImages(ctx)
	if err != nil || !opts.All {
		return pruned, err
	}
	before := time.Now().Add(-time.Duration(opts.UnusedFor))
	err = p.images.change(func(kept map[string]atoll.Image) error {
		for ref, img := range kept {
			if _, made := used[ref]; !made && img.Used.Before(before) {
				pruned.Images = append(pruned.Images, img.Digest)
				delete(kept, ref)
			}
		}
		return nil
	})
	slices.Sort(pruned.Images)
	return pruned, err
}

var (
	_ atoll.Preparer   = (*Provider)(nil)
	_ atoll.ImageStore = (*Provider)(nil)
)
