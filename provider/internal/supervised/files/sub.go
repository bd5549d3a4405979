package files

import (
	"context"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// Sub implements atoll.SubFS.
func (f *FS) Sub(dir string) atoll.FS {
	return &FS{f.view, append(slices.Clip(f.confinedTo), dir)}
}

// withConfinedFS is withFS for an FS that is confined to a directory. If that is a
// directory of the host, names that lead out of it are not looked up inside; else the
// inside finds it, and confines itself. If there are mounts below a directory of the host,
// only the inside knows, at any moment, what is where.
func (f *FS) withConfinedFS(ctx context.Context, op string, v *View, e extent, names []string, fn func(p routedFS, names []string) error) error {
	top := absolutePath(v.Workdir, f.confinedTo[0])
	m := v.mountOf(top)
	plain := m != nil && m.Source != "" && !v.hasMountBelow(m.Target)
	if plain {
		if d, err := v.openMount(m); err == nil { // else the mount is a file, or has gone
			defer d.Close()
			sub, err := d.Confine(ctx, op, top)
			if err == nil {
				defer sub.Close()
				return fn(routedFS{FS: confineTo(sub, f.confinedTo[1:]), root: v.Root}, names)
			}
			if !leadsOut(err) {
				return err
			}
		}
	}
	inside, err := v.Inside(ctx)
	switch {
	case err == nil:
		return v.explainError(fn(routedFS{FS: confineTo(inside, f.confinedTo)}, names))
	case plain:
		return err
	}
	return f.withStoppedFS(ctx, op, v, e, names, fn, err)
}

// confineTo confines a file system to each of dirs, each below the one before.
func confineTo(fs atoll.FS, dirs []string) atoll.FS {
	for _, dir := range dirs {
		fs = atoll.SubFiles(fs, dir)
	}
	return fs
}

// withStoppedFS is withConfinedFS for a sandbox whose inside is not available, for the
// given reason: no mount and no link changes, so each name is on the mount that its path
// says.
func (f *FS) withStoppedFS(ctx context.Context, op string, v *View, e extent, names []string, fn func(p routedFS, names []string) error, reason error) error {
	var dirs, abs []string
	base := v.Workdir
	for i, dir := range f.confinedTo {
		dirs = append(dirs, absolutePath(base, dir))
		if i > 0 && !atOrBelow(dirs[i], base) {
			return atoll.E(op, dir, atoll.ErrDenied, dirfs.ErrEscapes)
		}
		base = dirs[i]
	}
	for i, name := range names {
		abs = append(abs, absolutePath(base, name))
		if !atOrBelow(abs[i], base) {
			return atoll.E(op, name, atoll.ErrDenied, dirfs.ErrEscapes)
		}
	}
	d, on := v.openHostDir(ctx, e, abs)
	if d == nil {
		return reason
	}
	defer d.Close()
	// Directories above the mount point contain all of the mount: they need no confinement.
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !atOrBelow(dir, on.Target) })
	return fn(routedFS{FS: confineTo(d, dirs), root: v.Root}, abs)
}
