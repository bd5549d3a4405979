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

// Keep says which versions stay: the latest does, and each that one of these names.
// With neither, all do, and only what pushes have left behind is removed.
type Keep struct {
	Last   int           // the newest ones; 0 names none
	Within time.Duration // those that are no older; 0 names none
}

// Pruned is what a Prune removed.
type Pruned struct {
	Versions []int64 `json:"versions"`
	Objects  int     `json:"objects"`
	Bytes    int64   `json:"bytes"` // of the objects
}

// Prune removes versions, and objects that none needs any more. It waits for others
// that push or prune there. When it fails, the versions that are there are whole, and
// the next one removes the rest. A pull of a version that it removes fails.
func (r *Remote) Prune(ctx context.Context, keep Keep) (p Pruned, err error) {
	if keep.Last < 0 || keep.Within < 0 {
		return p, r.fail("prune", atoll.ErrInvalid, "what is kept is counted from 0")
	}
	c, err := r.take(ctx, nil)
	if err != nil {
		return p, err
	}
	defer c.release()
	p, err = r.prune(c, keep)
	if cause := context.Cause(c.ctx); err != nil && errors.Is(cause, ErrLost) {
		err = cause
	}
	return p, err
}

func (r *Remote) prune(c *claim, keep Keep) (p Pruned, err error) {
	now := c.current()
	var all, beyond []Info
	for v, err := range r.versions(c.ctx) {
		switch {
		case err != nil:
			return p, err
		case v.Version <= now.Version:
			all = append(all, v)
		case v.Size > 0:
			beyond = append(beyond, v)
		} // else it is what others have left, and stays void for a while
	}
	if now.Version == 0 && len(beyond) > 0 {
		return p, r.fail("prune", atoll.ErrInternal, "there are %d versions, and the object latest does not say which is the last: push, which makes it anew, and prune then", len(beyond))
	}
	kept, gone := r.choose(all, now.Version, keep)
	kept = append(kept, beyond...) // nobody knows why they are there: their bytes stay
	// What there is comes before what is needed, and the lock last: while it holds,
	// nobody adds objects, and what it then has seen unneeded nobody will need.
	objects, err := r.objects(c.ctx)
	if err != nil {
		return p, err
	}
	for _, v := range kept {
		if err := r.needs(c.ctx, v.Version, objects); err != nil {
			return p, err
		}
	}
	if err := c.renew(); err != nil {
		return p, err
	}
	r.opts.step("chosen")
	for _, v := range gone {
		if err := r.bucket.Delete(c.ctx, r.stateKey(v.Version)); err != nil {
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
	p.Objects = len(keys)
	if err := r.bucket.Delete(c.ctx, keys...); err != nil {
		return p, err
	}
	return p, objectstore.Sweep(c.ctx, r.bucket, r.prefix, voidFor*time.Second)
}

// voidFor is how many seconds something void stays in the place of a version: for as
// long as its writer might yet come back and write it.
const voidFor = 24 * 60 * 60

// choose parts the versions, which are sorted.
func (r *Remote) choose(all []Info, latest int64, keep Keep) (kept, gone []Info) {
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

// objects lists all that there are, with their sizes.
func (r *Remote) objects(ctx context.Context) (map[string]int64, error) {
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

// needs takes from objects what a version needs.
func (r *Remote) needs(ctx context.Context, n int64, objects map[string]int64) error {
	v, err := r.fetch(ctx, n, "", nil)
	if err != nil {
		return err // what it needs cannot be told, so that nothing may be removed
	}
	defer v.close()
	if len(v.bad) > 0 {
		return r.damaged(n, v.bad[0])
	}
	c, err := v.cursor()
	if err != nil {
		return err
	}
	for ; c.file != nil; c.advance() {
		if c.file.Object != "" {
			delete(objects, r.objectKey(c.file.Object))
		}
	}
	return c.err
}
