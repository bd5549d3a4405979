package files

import (
	"context"
	"os"

	"github.com/seed46cd37a8/atoll"
)

// Open implements atoll.Editor.
func (f *FS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (opened atoll.File, err error) {
	err = f.withFS(ctx, "open", file, []string{name}, func(p routedFS, names []string) (err error) {
		opened, err = atoll.OpenFile(ctx, p.FS, names[0], opts)
		if err == nil && p.root != 0 {
			opened = hostFile{opened, p}
		}
		return err
	})
	return opened, err
}

// A hostFile is an open file on the host, whose owner differs from that inside.
type hostFile struct {
	atoll.File
	on routedFS
}

// Stat implements atoll.File.
func (h hostFile) Stat(ctx context.Context) (atoll.FileInfo, error) {
	info, err := h.File.Stat(ctx)
	h.on.mapOwner(&info)
	return info, err
}

// Change implements atoll.File.
func (h hostFile) Change(ctx context.Context, change atoll.FileChange) error {
	return h.File.Change(ctx, h.on.mapChange(change))
}

// mapChange translates the owner of a change inside to that on the host.
func (p routedFS) mapChange(change atoll.FileChange) atoll.FileChange {
	if o := change.Owner; o != nil && p.root != 0 && o.UID == 0 && o.GID == 0 {
		change.Owner = &atoll.FileOwner{UID: p.root, GID: os.Getegid()}
	}
	return change
}

// specialBits are the set-user-ID and set-group-ID bits. Only the inside sets them, with its own rights.
const specialBits = 0o6000

// Change implements atoll.Editor.
func (f *FS) Change(ctx context.Context, name string, change atoll.FileChange) error {
	if m := change.Mode; m != nil && *m&specialBits != 0 {
		if done, err := f.changeInside(ctx, name, change); done {
			return err
		}
	}
	e := file
	if change.NoFollow {
		e = entry
	}
	return f.withFS(ctx, "change", e, []string{name}, func(p routedFS, names []string) error {
		return atoll.ChangeFile(ctx, p.FS, names[0], p.mapChange(change))
	})
}

// changeInside changes a file as a program inside would; done is false if there is no inside.
func (f *FS) changeInside(ctx context.Context, name string, change atoll.FileChange) (done bool, err error) {
	v, err := f.view()
	if err != nil {
		return true, err
	}
	inside, err := v.Inside(ctx)
	if err != nil {
		return false, nil // the host refuses the bits, and says so
	}
	if len(f.confinedTo) > 0 {
		inside = confineTo(inside, f.confinedTo)
	} else {
		name = absolutePath(v.Workdir, name)
	}
	return true, atoll.ChangeFile(ctx, inside, name, change)
}

// Link implements atoll.Editor.
func (f *FS) Link(ctx context.Context, from, to string) error {
	return f.withFS(ctx, "link", entry, []string{from, to}, func(p routedFS, names []string) error {
		return atoll.LinkFile(ctx, p.FS, names[0], names[1])
	})
}

// Space implements atoll.Editor.
func (f *FS) Space(ctx context.Context, name string) (space atoll.Space, err error) {
	err = f.withFS(ctx, "space", file, []string{name}, func(p routedFS, names []string) (err error) {
		space, err = atoll.SpaceOf(ctx, p.FS, names[0])
		return err
	})
	return space, err
}

var _ atoll.Editor = (*FS)(nil)
