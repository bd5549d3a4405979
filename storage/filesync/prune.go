package filesync

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// Keep selects the versions that stay: the latest, and each that one of the fields
// selects. Without any, all versions stay, and Prune only removes remains of failed
// pushes.
type Keep struct {
	Last   int           // this many of the newest; 0 selects none
	Within time.Duration // those no older than this; 0 selects none
}

// Pruned counts what a Prune removed.
type Pruned struct {
	Versions []int64 `json:"versions"`
	Objects  int     `json:"objects"`
	Bytes    int64   `json:"bytes"` // of the objects
}

// Prune removes versions, and objects that no version needs any more. It waits for
// other pushes and prunes. If it fails, the remaining versions are intact, and the next
// Prune removes the rest. A pull of a version that it removes fails.
func (r *Remote) Prune(ctx context.Context, keep Keep) (p Pruned, err error) {
	if keep.Last < 0 || keep.Within < 0 {
		return p, r.newError("prune", atoll.ErrInvalid, "keep counts must not be negative")
	}
	c, err := r.acquireLease(ctx, nil)
	if err != nil {
		return p, err
	}
	defer c.releaseLease()
	p, err = r.pruneVersions(c, keep)
	if cause := context.Cause(c.ctx); err != nil && errors.Is(cause, ErrLost) {
		err = cause
	}
	return p, err
}

func (r *Remote) pruneVersions(c *lease, keep Keep) (p Pruned, err error) {
	now := c.currentRecord()
	var all, beyond []Info
	for v, err := range r.listVersions(c.ctx) {
		switch {
		case err != nil:
			return p, err
		case v.Version <= now.Version:
			all = append(all, v)
		case v.Size > 0:
			beyond = append(beyond, v)
		} // an empty file of another program's push stays void for a while
	}
	if now.Version == 0 && len(beyond) > 0 {
		return p, r.newError("prune", atoll.ErrInternal, "the object latest is missing, but there are %d versions: push to create it again, then prune", len(beyond))
	}
	kept, gone := r.chooseVersions(all, now.Version, keep)
	kept = append(kept, beyond...) // their origin is unknown, so their content stays
	// List the objects before reading what versions need, and renew the lock last:
	// while this program holds it, nobody adds objects, so an object that is unneeded
	// now stays unneeded.
	objects, err := r.listObjects(c.ctx)
	if err != nil {
		return p, err
	}
	for _, v := range kept {
		if err := r.dropNeeded(c.ctx, v.Version, objects); err != nil {
			return p, err
		}
	}
	if err := c.renewLease(); err != nil {
		return p, err
	}
	r.opts.step("chosen")
	for _, v := range gone {
		files, size, err := r.deleteVersion(c.ctx, v.Version)
		p.Objects, p.Bytes = p.Objects+files, p.Bytes+size
		if err != nil {
			return p, err
		}
		if v.Size > 0 {
			p.Versions = append(p.Versions, v.Version)
		}
		r.opts.step("version")
	}
	var keys []string
	for key, size := range objects {
		keys = append(keys, key)
		p.Bytes += size
	}
	slices.Sort(keys)
	p.Objects += len(keys)
	if err := r.bucket.Delete(c.ctx, keys...); err != nil {
		return p, err
	}
	return p, objectstore.Sweep(c.ctx, r.bucket, r.prefix, voidFor*time.Second)
}

// voidFor is the time in seconds for which a void file stays in the place of a version:
// as long as its writer might still come back and write it.
const voidFor = 24 * 60 * 60

// chooseVersions splits the versions, which are sorted, into those to keep and those to
// remove.
func (r *Remote) chooseVersions(all []Info, latest int64, keep Keep) (kept, gone []Info) {
	left := 0 // versions from here on
	for _, v := range all {
		if v.Size > 0 {
			left++
		}
	}
	now := r.opts.now()
	for _, v := range all {
		switch {
		case v.Size == 0 && v.Version < latest-voidFor:
			gone = append(gone, v)
			continue
		case v.Size == 0:
			continue
		case v.Version == latest, left <= keep.Last, keep == Keep{}, keep.Within > 0 && now.Sub(time.Unix(v.Version, 0)) <= keep.Within:
			kept = append(kept, v)
		default:
			gone = append(gone, v)
		}
		left--
	}
	return kept, gone
}

// listObjects returns the keys and sizes of all objects.
func (r *Remote) listObjects(ctx context.Context) (map[string]int64, error) {
	all := map[string]int64{}
	for o, err := range r.bucket.List(ctx, r.objectKey("")) {
		if err != nil {
			return nil, err
		}
		if isObject(strings.TrimPrefix(o.Key, r.objectKey(""))) {
			all[o.Key] = o.Size
		}
	}
	return all, nil
}

// dropNeeded deletes from objects those that a version needs.
func (r *Remote) dropNeeded(ctx context.Context, n int64, objects map[string]int64) error {
	v, err := r.fetchState(ctx, n, "", nil)
	if err != nil {
		return err // without the list of needed objects nothing may be removed
	}
	defer v.closeSpool()
	if len(v.bad) > 0 {
		return r.damagedError(n, v.bad[0])
	}
	c, err := v.openCursor()
	if err != nil {
		return err
	}
	for ; c.file != nil; c.readNext() {
		if c.file.Object != "" {
			delete(objects, r.objectKey(c.file.Object))
		}
	}
	return c.err
}
