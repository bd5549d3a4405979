package files

import (
	"context"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// Sub implements atoll.SubFS.
func (f *FS) Sub(dir string) atoll.FS {
	return &FS{f.view, append(slices.Clip(f.below), dir)}
}

// confined is do for an FS that is confined to a directory. If that is one of
// the host's, what leads out of it is not looked for inside; else the inside
// finds it, and confines itself. Where something is mounted below a directory of
// the host, the inside alone knows what is where, at any moment.
func (f *FS) confined(ctx context.Context, op string, v *View, e extent, names []string, fn func(p part, names []string) error) error {
	top := absolute(v.Workdir, f.below[0])
	m := v.mount(top)
	plain := m != nil && m.Source != "" && !v.mounted(m.Target)
	if plain {
		if d, err := v.open(m); err == nil { // no file, and not gone
			defer d.Close()
			sub, err := d.Confine(ctx, op, top)
			if err == nil {
				defer sub.Close()
				return fn(part{within(sub, f.below[1:]), v.Root}, names)
			}
			if !leadsOut(err) {
				return err
			}
		}
	}
	inside, err := v.Inside(ctx)
	switch {
	case err == nil:
		return fn(part{FS: within(inside, f.below)}, names)
	case plain:
		return err
	}
	return f.atRest(ctx, op, v, e, names, fn, err)
}

// within confines a file system to each of dirs, below the one before.
func within(fs atoll.FS, dirs []string) atoll.FS {
	for _, dir := range dirs {
		fs = atoll.SubFiles(fs, dir)
	}
	return fs
}

// atRest is confined where nobody is inside, for the reason why: no mount and no
// link changes, so that each name is on the mount that it says.
func (f *FS) atRest(ctx context.Context, op string, v *View, e extent, names []string, fn func(p part, names []string) error, why error) error {
	var dirs, abs []string
	base := v.Workdir
	for i, dir := range f.below {
		dirs = append(dirs, absolute(base, dir))
		if i > 0 && !atOrBelow(dirs[i], base) {
			return atoll.E(op, dir, atoll.ErrDenied, dirfs.ErrEscapes)
		}
		base = dirs[i]
	}
	for i, name := range names {
		abs = append(abs, absolute(base, name))
		if !atOrBelow(abs[i], base) {
			return atoll.E(op, name, atoll.ErrDenied, dirfs.ErrEscapes)
		}
	}
	d, on := v.outside(ctx, e, abs)
	if d == nil {
		return why
	}
	defer d.Close()
	// All of a mount is below the directories that it is mounted below.
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !atOrBelow(dir, on.Target) })
	return fn(part{within(d, dirs), v.Root}, abs)
}
