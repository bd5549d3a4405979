//go:build linux

package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Keep returns an error that says why the image with that digest must stay although
// no process holds it, and nil if it need not. A nil Keep keeps none.
type Keep func(digest string) error

func (k Keep) keepReason(digest string) error {
	if k == nil {
		return nil
	}
	return k(digest)
}

// Remove takes the name ref from its image, and removes the image if it has no other
// name. A digest removes the image with all its names. The blobs of the image stay
// until Prune. Kinds: ErrInvalid, ErrNotExist, ErrConflict (a process holds the image;
// then Remove changes nothing), and those of keep.
func (s *Store) Remove(ctx context.Context, ref string, keep Keep) error {
	r, err := parseReference(ref)
	if err != nil {
		return atoll.E("remove image", ref, atoll.ErrInvalid, err)
	}
	if r.path != "" {
		return atoll.Errorf("remove image", ref, atoll.ErrInvalid, "use the digest of the image")
	}
	rec, h, err := s.findImage(r)
	if err != nil {
		return err
	}
	if rec == nil {
		return atoll.Errorf("remove image", ref, atoll.ErrNotExist, "no such image in %s", s.dir)
	}
	digest := h.String()
	tags, err := s.readTags()
	if err != nil {
		return err
	}
	mine := s.tagPath(r.text, s.platform.String())
	others := 0
	for path, t := range tags {
		if t.Digest == digest && path != mine {
			others++
		}
	}
	if r.digest != (v1.Hash{}) || others == 0 {
		if err := keep.keepReason(digest); err != nil {
			return err
		}
		_, err := s.dropImage(digest, tags, nil)
		return err
	}
	if err := os.Remove(mine); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.storeError(err)
	}
	return nil
}

// Pruned lists the images that Prune removed.
type Pruned struct {
	Images []string    `json:"images,omitempty"` // digests
	Bytes  atoll.Bytes `json:"bytes"`            // of images and blobs
}

// PruneOptions select the images that Prune removes, among those that no process holds.
type PruneOptions struct {
	Unused  time.Duration // only images without a Get or Hold for so long
	Unnamed bool          // only images whose last name now means another image
	Keep    Keep          // except these
}

// Prune removes images, and blobs that are older than opts.Unused and belong to no
// remaining image. It goes on after a failure, and returns the first one.
func (s *Store) Prune(ctx context.Context, opts PruneOptions) (Pruned, error) {
	var pruned Pruned
	before := time.Now().Add(-opts.Unused)
	s.sweepStale()
	recs, err := s.readRecords()
	if err != nil {
		return pruned, err
	}
	tags, err := s.readTags()
	if err != nil {
		return pruned, err
	}
	named := map[string]bool{}
	for _, t := range tags {
		named[t.Digest] = true
	}
	var first error
	keep := map[string]bool{}
	for digest, rec := range recs {
		if err := ctx.Err(); err != nil {
			return pruned, err
		}
		gone := false
		if rec.Used.Before(before) && !(opts.Unnamed && named[digest]) && opts.Keep.keepReason(digest) == nil {
			gone, err = s.dropImage(digest, tags, &before)
			if err != nil && atoll.KindOf(err) != atoll.ErrConflict && first == nil {
				first = err
			}
		}
		if gone {
			pruned.Images = append(pruned.Images, digest)
			pruned.Bytes += rec.Size
			continue
		}
		for _, b := range rec.Blobs {
			keep[b] = true
		}
	}
	slices.Sort(pruned.Images)
	freed, err := s.pruneBlobs(keep, before)
	pruned.Bytes += freed
	if first == nil {
		first = err
	}
	return pruned, first
}

// dropImage removes the image with this digest and its names. With unusedSince, if the
// image was used since then, it does nothing and returns false.
func (s *Store) dropImage(digest string, tags map[string]tag, unusedSince *time.Time) (bool, error) {
	h, err := v1.NewHash(digest)
	if err != nil {
		return false, err
	}
	dir := s.storePath(rootsDir, digestName(h))
	lock, err := tryLock(filepath.Join(dir, lockName), lockExclusive)
	if err == fsutil.ErrLocked {
		return false, atoll.Errorf("remove image", digest, atoll.ErrConflict, "in use by a sandbox; stop the sandbox first")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // another process has removed it
	}
	if err != nil {
		return false, s.storeError(err)
	}
	defer lock.Close()
	if unusedSince != nil {
		if fi, err := lock.Stat(); err != nil || !fi.ModTime().Before(*unusedSince) {
			return false, err
		}
	}
	temp, err := s.tempName()
	if err != nil {
		return false, s.storeError(err)
	}
	// The rename is atomic: from here on no process sees the image.
	if err := os.Rename(dir, temp); err != nil {
		return false, s.storeError(err)
	}
	for path, t := range tags {
		if t.Digest == digest {
			os.Remove(path) // a tag that stays refers to no image, which does no harm
		}
	}
	s.log.Debug("remove", "image", digest)
	if err := fsutil.RemoveAll(temp); err != nil {
		return true, s.storeError(err)
	}
	return true, nil
}

// pruneBlobs removes the blobs that were fetched before that time and are not in keep,
// and returns their size.
func (s *Store) pruneBlobs(keep map[string]bool, before time.Time) (atoll.Bytes, error) {
	entries, err := os.ReadDir(s.storePath(blobsDir))
	if err != nil {
		return 0, s.storeError(err)
	}
	var freed atoll.Bytes
	for _, e := range entries {
		if keep[strings.Replace(e.Name(), "-", ":", 1)] {
			continue
		}
		fi, err := e.Info()
		if err != nil || !fi.ModTime().Before(before) {
			continue // gone, or part of an image that is being fetched
		}
		if err := os.Remove(s.storePath(blobsDir, e.Name())); err != nil {
			return freed, s.storeError(err)
		}
		freed += atoll.Bytes(fi.Size())
	}
	return freed, nil
}
