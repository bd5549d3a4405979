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

// An imageStore records the images that were requested, in a file. Every valid image name exists,
// without content.
type imageStore struct {
	path string // of the JSON file

	mu    sync.Mutex
	byRef map[string]atoll.Image // by Ref
}

func openImages(dir string) (*imageStore, error) {
	im := &imageStore{path: filepath.Join(dir, "images.json"), byRef: map[string]atoll.Image{}}
	b, err := os.ReadFile(im.path)
	if err == nil {
		err = json.Unmarshal(b, &im.byRef)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.E("open", im.path, atoll.ErrInternal, err)
	}
	return im, nil
}

// updateImages lets f change the images and writes them to the file.
func (im *imageStore) updateImages(f func(byRef map[string]atoll.Image) error) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	if err := f(im.byRef); err != nil {
		return err
	}
	b, err := json.Marshal(im.byRef)
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

// addImage adds an image, or updates its time of use.
func (im *imageStore) addImage(ref string) error {
	if !validRef(ref) {
		return atoll.Errorf("image", ref, atoll.ErrInvalid, "invalid image name; use a name like python:3.11-slim")
	}
	return im.updateImages(func(byRef map[string]atoll.Image) error {
		img, ok := byRef[ref]
		if !ok {
			digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref)))
			img = atoll.Image{Ref: ref, Digest: digest, Platform: "linux/mock", Fetched: time.Now()}
		}
		img.Used = time.Now()
		byRef[ref] = img
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
	if _, err := spec.Complete(p.Info().Name); err != nil {
		return err
	}
	if spec.Image == "" || spec.Image == defaultImage {
		return ctx.Err()
	}
	if progress != nil {
		progress(atoll.Progress{Phase: "pull", Item: spec.Image})
	}
	return p.images.addImage(spec.Image)
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
	for ref, img := range p.images.byRef {
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
		return "", atoll.Errorf("resolve image", ref, atoll.ErrInvalid, "invalid image name; use a name like python:3.11-slim")
	}
	p.images.mu.Lock()
	defer p.images.mu.Unlock()
	img, ok := p.images.byRef[ref]
	if !ok {
		return "", atoll.Errorf("resolve image", ref, atoll.ErrNotExist, "image was not pulled")
	}
	return img.Digest, nil
}

// usedImages returns the images that sandboxes use. The value of an image is true if one of these
// sandboxes is running.
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
		return atoll.Errorf("remove image", ref, atoll.ErrInvalid, "invalid image name; use a name like python:3.11-slim")
	}
	used, err := p.usedImages(ctx)
	if err != nil {
		return err
	}
	return p.images.updateImages(func(byRef map[string]atoll.Image) error {
		for _, img := range byRef {
			if img.Ref != ref && img.Digest != ref {
				continue
			}
			if running, made := used[img.Ref]; running || made && !force {
				return atoll.Errorf("remove image", ref, atoll.ErrConflict, "a sandbox uses the image; remove the sandbox first")
			}
			delete(byRef, img.Ref)
			return nil
		}
		return atoll.E("remove image", ref, atoll.ErrNotExist, nil)
	})
}

// PruneImages implements atoll.ImageStore. Every image has a name, so it removes images only with
// opts.All.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	pruned := atoll.Pruned{Images: []string{}}
	used, err := p.usedImages(ctx)
	if err != nil || !opts.All {
		return pruned, err
	}
	before := time.Now().Add(-time.Duration(opts.UnusedFor))
	err = p.images.updateImages(func(byRef map[string]atoll.Image) error {
		for ref, img := range byRef {
			if _, made := used[ref]; !made && img.Used.Before(before) {
				pruned.Images = append(pruned.Images, img.Digest)
				delete(byRef, ref)
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
