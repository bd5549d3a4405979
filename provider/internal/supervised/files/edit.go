package files

import (
	"context"
	"os"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// Open implements atoll.Editor.
func (f *FS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (opened atoll.File, err error) {
	err = f.withFS(ctx, "open", file, []string{name}, func(p routedFS, names []string) (err error) {
		opened, err = atoll.OpenFile(ctx, p.FS, names[0], opts)
		if err == nil && (p.root != 0 || p.live != nil) {
			opened = hostFile{opened, p, names[0], opts.Write}
		}
		return err
	})
	return opened, err
}

// A hostFile is an open file on the host, whose owner may differ from that inside.
type hostFile struct {
	atoll.File
	on      routedFS
	name    string
	written bool
}

// Close implements atoll.File. Programs that watch a file which may have been written get an event.
func (h hostFile) Close() error {
	if h.written && h.on.live != nil {
		ctx, cancel := context.WithTimeout(context.Background(), dirfs.LiveTime)
		defer cancel()
		// The name may belong to another file by now, which must remain as it is.
		if info, err := h.on.live.Stat(ctx, h.name); err == nil && info.Type == atoll.TypeFile {
			_ = atoll.ChangeFile(ctx, h.on.live, h.name, atoll.FileChange{Mode: &info.Mode, NoFollow: true}) // it may have gone
		}
	}
	return h.File.Close()
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

// Change implements atoll.Editor.
func (f *FS) Change(ctx context.Context, name string, change atoll.FileChange) error {
	e := file
	if change.NoFollow {
		e = entry
	}
	return f.changeFS(ctx, "change", e, []string{name}, func(ctx context.Context, p routedFS, names []string) error {
		return atoll.ChangeFile(ctx, p.FS, names[0], p.mapChange(change))
	})
}

// Link implements atoll.Editor.
func (f *FS) Link(ctx context.Context, from, to string) error {
	return f.changeFS(ctx, "link", entry, []string{from, to}, func(ctx context.Context, p routedFS, names []string) error {
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
