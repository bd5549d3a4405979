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
	return &joined{base, mounts}
}

type joined struct {
	base   *FS
	mounts []*FS
}

// pick returns the FS that has name, and name made absolute.
func (j *joined) pick(name string) (*FS, string) {
	if !path.IsAbs(name) {
		name = path.Join(j.base.opts.Workdir, name)
	}
	name = path.Clean(name)
	best := j.base
	for _, m := range j.mounts {
		if _, ok := Below(m.prefix, name); ok && len(m.prefix) > len(best.prefix) {
			best = m
		}
	}
	return best, name
}

func (j *joined) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	f, name := j.pick(name)
	return f.Read(ctx, name, offset)
}

func (j *joined) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	f, name := j.pick(name)
	return f.Write(ctx, name, r, opts)
}

func (j *joined) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	f, name := j.pick(name)
	return f.Stat(ctx, name)
}

func (j *joined) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	f, name := j.pick(name)
	return f.List(ctx, name, recursive)
}

func (j *joined) Mkdir(ctx context.Context, name string, mode uint32) error {
	f, name := j.pick(name)
	return f.Mkdir(ctx, name, mode)
}

func (j *joined) Rename(ctx context.Context, from, to string) error {
	f, from := j.pick(from)
	g, to := j.pick(to)
	if f != g {
		return atoll.Errorf("rename", from, atoll.ErrInvalid, "%s is on another volume: copy and remove it", to)
	}
	return f.Rename(ctx, from, to)
}

func (j *joined) Remove(ctx context.Context, name string, recursive bool) error {
	f, name := j.pick(name)
	return f.Remove(ctx, name, recursive)
}

func (j *joined) WriteTar(ctx context.Context, name string, w io.Writer) error {
	f, name := j.pick(name)
	return f.WriteTar(ctx, name, w)
}

func (j *joined) ReadTar(ctx context.Context, name string, r io.Reader) error {
	f, name := j.pick(name)
	return f.ReadTar(ctx, name, r)
}

func (j *joined) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	f, name := j.pick(name)
	return f.Watch(ctx, name, recursive)
}
