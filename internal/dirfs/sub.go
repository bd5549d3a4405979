package dirfs

import (
	"context"
	"path"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
)

// Sub implements atoll.SubFS.
func (f *FS) Sub(dir string) atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		sub, err := f.Confine(ctx, op, dir)
		if err != nil {
			return err
		}
		defer sub.Close()
		return fn(ctx, sub)
	})
}

// Confine returns an FS like that of Sub for the current directory dir. The caller
// closes it. op is for errors. If ErrEscapes is the cause of an error, dir itself leads
// out of f.
func (f *FS) Confine(ctx context.Context, op, dir string) (*FS, error) {
	at, err := f.resolveName(ctx, op, dir)
	if err != nil {
		return nil, err
	}
	var root tree
	err = f.inTree(at.rel, true, func(rel string) (err error) {
		root, err = f.tree.OpenRoot(rel)
		return err
	})
	if err != nil {
		return nil, wrapError(op, dir, err)
	}
	sub := *f
	sub.tree, sub.prefix, sub.opts.Workdir = root, at.abs, at.abs
	if sub.opts.Live != nil {
		sub.opts.Live = atoll.SubFiles(sub.opts.Live, at.abs)
	}
	sub.keepsInodes = keepsInodes(root)
	real, err := f.resolveLinks(at.rel, true)
	if err != nil { // it has just gone
		real = at.rel
	}
	sub.roots = []string{path.Join(f.roots[0], at.rel), path.Join(f.roots[1], at.rel)}
	for _, name := range f.roots {
		sub.roots = append(sub.roots, path.Join(name, real))
	}
	return &sub, nil
}

var _ atoll.SubFS = (*FS)(nil)
