package life

import (
	"context"
	"io"
	"iter"

	"github.com/seed46cd37a8/atoll"
)

// files are those of a box. They are opened for each call, so that a handle
// holds no resources.
type files struct{ b *box }

// do calls f with the box's files open, unless it was removed.
func (s files) do(op string, f func(atoll.FS) error) error {
	if !s.b.visible() {
		return atoll.E(op, s.b.id, atoll.ErrNotFound, nil)
	}
	open, closeAll, err := s.b.place.open(s.b.p.volumes)
	if err != nil {
		if !s.b.visible() {
			return atoll.E(op, s.b.id, atoll.ErrNotFound, nil)
		}
		return known(op, s.b.id, err)
	}
	defer closeAll()
	return f(open)
}

func (s files) Read(ctx context.Context, name string, offset int64) (r io.ReadCloser, info atoll.FileInfo, err error) {
	err = s.do("read", func(fs atoll.FS) error { r, info, err = fs.Read(ctx, name, offset); return err })
	return r, info, err
}

func (s files) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (info atoll.FileInfo, err error) {
	err = s.do("write", func(fs atoll.FS) error { info, err = fs.Write(ctx, name, r, opts); return err })
	return info, err
}

func (s files) Stat(ctx context.Context, name string) (info atoll.FileInfo, err error) {
	err = s.do("stat", func(fs atoll.FS) error { info, err = fs.Stat(ctx, name); return err })
	return info, err
}

func (s files) List(ctx context.Context, name string, recursive bool) (list []atoll.FileInfo, err error) {
	err = s.do("list", func(fs atoll.FS) error { list, err = fs.List(ctx, name, recursive); return err })
	return list, err
}

func (s files) Mkdir(ctx context.Context, name string, mode uint32) error {
	return s.do("mkdir", func(fs atoll.FS) error { return fs.Mkdir(ctx, name, mode) })
}

func (s files) Rename(ctx context.Context, from, to string) error {
	return s.do("rename", func(fs atoll.FS) error { return fs.Rename(ctx, from, to) })
}

func (s files) Remove(ctx context.Context, name string, recursive bool) error {
	return s.do("remove", func(fs atoll.FS) error { return fs.Remove(ctx, name, recursive) })
}

func (s files) WriteTar(ctx context.Context, name string, w io.Writer) error {
	return s.do("read", func(fs atoll.FS) error { return fs.WriteTar(ctx, name, w) })
}

func (s files) ReadTar(ctx context.Context, name string, r io.Reader) error {
	return s.do("write", func(fs atoll.FS) error { return fs.ReadTar(ctx, name, r) })
}

func (s files) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return func(yield func(atoll.FileEvent, error) bool) {
		err := s.do("watch", func(fs atoll.FS) error {
			for ev, err := range fs.Watch(ctx, name, recursive) {
				if !yield(ev, err) {
					break
				}
			}
			return nil
		})
		if err != nil {
			yield(atoll.FileEvent{}, err)
		}
	}
}
