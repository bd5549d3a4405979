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

// Keep says why the image with that digest must stay, although nobody holds it;
// nil when it need not. A nil Keep keeps none.
type Keep func(digest string) error

func (k Keep) why(digest string) error {
	if k == nil {
		return nil
	}
	return k(digest)
}

// Remove takes the name ref from its image, and removes the image when it has
// no other. A digest removes the image with all its names. What was fetched for
// it stays until Prune. Kinds: ErrInvalid, ErrNotExist, ErrConflict (it is held
// by someone; then nothing is changed), and those of keep.
func (s *Store) Remove(ctx context.Context, ref string, keep Keep) error {
	r, err := parse(ref)
	if err != nil {
		return atoll.E("remove image", ref, atoll.ErrInvalid, err)
	}
	if r.path != "" {
		return atoll.Errorf("remove image", ref, atoll.ErrInvalid, "remove it by its digest")
	}
	rec, h, err := s.find(r)
	if err != nil {
		return err
	}
	if rec == nil {
		return atoll.Errorf("remove image", ref, atoll.ErrNotExist, "no such image in %s", s.dir)
	}
	digest := h.String()
	tags, err := s.tags()
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
		if err := keep.why(digest); err != nil {
			return err
		}
		_, err := s.drop(digest, tags, nil)
		return err
	}
	if err := os.Remove(mine); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.storage(err)
	}
	return nil
}

// Pruned says what Prune removed.
type Pruned struct {
	Images []string    `json:"images,omitempty"` // digests
	Bytes  atoll.Bytes `json:"bytes"`
}

// PruneOptions say which images Prune removes, of those that nobody holds.
type PruneOptions struct {
	Unused  time.Duration // only those that nobody got or held for so long
	Unnamed bool          // only those whose last name now means another image
	Keep    Keep          // but for these
}

// Prune removes images, and what was fetched as long ago as opts.Unused says
// and belongs to no image that is left. It goes on after a failure, and returns
// the first.
func (s *Store) Prune(ctx context.Context, opts PruneOptions) (Pruned, error) {
	var pruned Pruned
	before := time.Now().Add(-opts.Unused)
	s.sweep()
	recs, err := s.records()
	if err != nil {
		return pruned, err
	}
	tags, err := s.tags()
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
		if rec.Used.Before(before) && !(opts.Unnamed && named[digest]) && opts.Keep.why(digest) == nil {
			gone, err = s.drop(digest, tags, &before)
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

// drop removes the image with this digest and its names. With unusedSince, it
// does nothing and returns false when the image was used since then.
func (s *Store) drop(digest string, tags map[string]tag, unusedSince *time.Time) (bool, error) {
	h, err := v1.NewHash(digest)
	if err != nil {
		return false, err
	}
	dir := s.path(rootsDir, file(h))
	lock, err := tryLock(filepath.Join(dir, lockName), lockExclusive)
	if err == fsutil.ErrLocked {
		return false, atoll.Errorf("remove image", digest, atoll.ErrConflict, "it is used by what runs: stop that first")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // removed by another
	}
	if err != nil {
		return false, s.storage(err)
	}
	defer lock.Close()
	if unusedSince != nil {
		if fi, err := lock.Stat(); err != nil || !fi.ModTime().Before(*unusedSince) {
			return false, err
		}
	}
	temp, err := s.tempName()
	if err != nil {
		return false, s.storage(err)
	}
	// At once and as a whole: from here on it is not there for anyone.
	if err := os.Rename(dir, temp); err != nil {
		return false, s.storage(err)
	}
	for path, t := range tags {
		if t.Digest == digest {
			os.Remove(path) // one that stays leads nowhere, which is no harm
		}
	}
	s.log.Debug("remove", "image", digest)
	if err := fsutil.RemoveAll(temp); err != nil {
		return true, s.storage(err)
	}
	return true, nil
}

// pruneBlobs removes the blobs fetched before that time and not in keep.
func (s *Store) pruneBlobs(keep map[string]bool, before time.Time) (atoll.Bytes, error) {
	entries, err := os.ReadDir(s.path(blobsDir))
	if err != nil {
		return 0, s.storage(err)
	}
	var freed atoll.Bytes
	for _, e := range entries {
		if keep[strings.Replace(e.Name(), "-", ":", 1)] {
			continue
		}
		fi, err := e.Info()
		if err != nil || !fi.ModTime().Before(before) {
			continue // gone, or for an image that is being fetched
		}
		if err := os.Remove(s.path(blobsDir, e.Name())); err != nil {
			return freed, s.storage(err)
		}
		freed += atoll.Bytes(fi.Size())
	}
	return freed, nil
}
