package dirfs

import (
	"context"
	"io"
	"iter"
	"path"

	"github.com/seed46cd37a8/atoll"
)

// Join returns a file system in which each of mounts, whose prefixes are below
// that of base, hides what base has there. Relative names are base's. Nothing
// can be moved from one to another.
func Join(base *FS, mounts ...*FS) atoll.FS {
	if len(mounts) == 0 {
		return base
	}
	j := &joined{base.opts.Workdir, base, nil}
	for _, m := range mounts {
		j.mounts = append(j.mounts, mount{m.prefix, m})
	}
	return j
}

type joined struct {
	workdir string
	base    atoll.FS
	mounts  []mount
}

type mount struct {
	prefix string
	fs     atoll.FS
}

// pick returns which of mounts has name, or -1 for base, and name made absolute.
func (j *joined) pick(name string) (on int, f atoll.FS, abs string) {
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

// Sub implements atoll.SubFS. A mount below dir is there as a whole, and as
// nothing leads out of it, it leads nowhere else.
func (j *joined) Sub(dir string) atoll.FS {
	_, f, dir := j.pick(dir)
	sub := &joined{workdir: dir, base: atoll.SubFiles(f, dir)}
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

func (j *joined) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	_, f, name := j.pick(name)
	return f.Read(ctx, name, offset)
}

func (j *joined) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	_, f, name := j.pick(name)
	return f.Write(ctx, name, r, opts)
}

func (j *joined) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	_, f, name := j.pick(name)
	return f.Stat(ctx, name)
}

func (j *joined) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	_, f, name := j.pick(name)
	return f.List(ctx, name, recursive)
}

func (j *joined) Mkdir(ctx context.Context, name string, mode uint32) error {
	_, f, name := j.pick(name)
	return f.Mkdir(ctx, name, mode)
}

func (j *joined) Rename(ctx context.Context, from, to string) error {
	i, f, from := j.pick(from)
	k, _, to := j.pick(to)
	if i != k {
		return atoll.Errorf("rename", from, atoll.ErrInvalid, "%s is on another volume: copy and remove it", to)
	}
	return f.Rename(ctx, from, to)
}

func (j *joined) Remove(ctx context.Context, name string, recursive bool) error {
	_, f, name := j.pick(name)
	return f.Remove(ctx, name, recursive)
}

func (j *joined) WriteTar(ctx context.Context, name string, w io.Writer) error {
	_, f, name := j.pick(name)
	return f.WriteTar(ctx, name, w)
}

func (j *joined) ReadTar(ctx context.Context, name string, r io.Reader) error {
	_, f, name := j.pick(name)
	return f.ReadTar(ctx, name, r)
}

func (j *joined) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	_, f, name := j.pick(name)
	return f.Watch(ctx, name, recursive)
}

var _ atoll.SubFS = (*joined)(nil)
