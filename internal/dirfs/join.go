package dirfs

import (
	"context"
	"io"
	"iter"
	"path"

	"github.com/seed46cd37a8/atoll"
)

// Join returns a file system in which each of mounts, whose prefixes are below that of
// base, hides the files of base there. Relative names are relative to base's workdir.
// Rename cannot move files from one to another.
func Join(base *FS, mounts ...*FS) atoll.FS {
	if len(mounts) == 0 {
		return base
	}
	j := &joinedFS{base.opts.Workdir, base, nil}
	for _, m := range mounts {
		j.mounts = append(j.mounts, mount{m.prefix, m})
	}
	return j
}

type joinedFS struct {
	workdir string
	base    atoll.FS
	mounts  []mount
}

type mount struct {
	prefix string
	fs     atoll.FS
}

// pickMount returns the index of the mount that has name, or -1 for base, its file
// system, and the absolute name.
func (j *joinedFS) pickMount(name string) (on int, f atoll.FS, abs string) {
	if !path.IsAbs(name) {
		name = path.Join(j.workdir, name)
	}
	name, on, f = path.Clean(name), -1, j.base
	for i, m := range j.mounts {
		if _, ok := Below(m.prefix, name); ok && (on < 0 || len(m.prefix) > len(j.mounts[on].prefix)) {
			on, f = i, m.fs
		}
	}
	return on, f, name
}

// Sub implements atoll.SubFS. It includes mounts below dir as a whole; nothing leads out
// of them.
func (j *joinedFS) Sub(dir string) atoll.FS {
	_, f, dir := j.pickMount(dir)
	sub := &joinedFS{workdir: dir, base: atoll.SubFiles(f, dir)}
	for _, m := range j.mounts {
		if rel, ok := Below(dir, m.prefix); ok && rel != "." {
			sub.mounts = append(sub.mounts, m)
		}
	}
	if len(sub.mounts) == 0 {
		return sub.base
	}
	return sub
}

func (j *joinedFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	_, f, name := j.pickMount(name)
	return f.Read(ctx, name, offset)
}

func (j *joinedFS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	_, f, name := j.pickMount(name)
	return f.Write(ctx, name, r, opts)
}

func (j *joinedFS) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	_, f, name := j.pickMount(name)
	return f.Stat(ctx, name)
}

func (j *joinedFS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	_, f, name := j.pickMount(name)
	return f.List(ctx, name, recursive)
}

func (j *joinedFS) Mkdir(ctx context.Context, name string, mode uint32) error {
	_, f, name := j.pickMount(name)
	return f.Mkdir(ctx, name, mode)
}

func (j *joinedFS) Rename(ctx context.Context, from, to string) error {
	i, f, from := j.pickMount(from)
	k, _, to := j.pickMount(to)
	if i != k {
		return atoll.Errorf("rename", from, atoll.ErrInvalid, "%s is on another volume: copy and remove it", to)
	}
	return f.Rename(ctx, from, to)
}

func (j *joinedFS) Remove(ctx context.Context, name string, recursive bool) error {
	_, f, name := j.pickMount(name)
	return f.Remove(ctx, name, recursive)
}

func (j *joinedFS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	_, f, name := j.pickMount(name)
	return f.WriteTar(ctx, name, w)
}

func (j *joinedFS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	_, f, name := j.pickMount(name)
	return f.ReadTar(ctx, name, r)
}

func (j *joinedFS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	_, f, name := j.pickMount(name)
	return f.Watch(ctx, name, recursive)
}

func (j *joinedFS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (atoll.File, error) {
	_, f, name := j.pickMount(name)
	return atoll.OpenFile(ctx, f, name, opts)
}

func (j *joinedFS) Change(ctx context.Context, name string, change atoll.FileChange) error {
	_, f, name := j.pickMount(name)
	return atoll.ChangeFile(ctx, f, name, change)
}

func (j *joinedFS) Link(ctx context.Context, from, to string) error {
	i, f, from := j.pickMount(from)
	k, _, to := j.pickMount(to)
	if i != k {
		return atoll.Errorf("link", from, atoll.ErrInvalid, "%s is on another volume: copy it", to)
	}
	return atoll.LinkFile(ctx, f, from, to)
}

func (j *joinedFS) Space(ctx context.Context, name string) (atoll.Space, error) {
	_, f, name := j.pickMount(name)
	return atoll.SpaceOf(ctx, f, name)
}

var (
	_ atoll.SubFS  = (*joinedFS)(nil)
	_ atoll.Editor = (*joinedFS)(nil)
)
