package trace

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"slices"

	"github.com/seed46cd37a8/atoll"
)

type files struct {
	atoll.FS
	sb    *sandbox
	below []slog.Attr // the directories that it is confined to
}

// Sub implements atoll.SubFS.
func (f *files) Sub(dir string) atoll.FS {
	return &files{atoll.SubFiles(f.FS, dir), f.sb, append(slices.Clip(f.below), slog.String("below", dir))}
}

func (f *files) begin(ctx context.Context, op string) (context.Context, *call) {
	return f.sb.t.begin(ctx, "files."+op, f.sb.ID(), "")
}

func (f *files) end(ctx context.Context, c *call, err error, details ...slog.Attr) {
	c.end(ctx, err, append(slices.Clip(f.below), details...)...)
}

// Read tells of the opening only.
func (f *files) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	ctx, c := f.begin(ctx, "read")
	r, info, err := f.FS.Read(ctx, name, offset)
	f.end(ctx, c, err, slog.String("name", name), slog.Int64("size", info.Size))
	return r, info, err
}

func (f *files) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	ctx, c := f.begin(ctx, "write")
	info, err := f.FS.Write(ctx, name, r, opts)
	f.end(ctx, c, err, slog.String("name", name), slog.Int64("size", info.Size))
	return info, err
}

func (f *files) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	ctx, c := f.begin(ctx, "stat")
	info, err := f.FS.Stat(ctx, name)
	f.end(ctx, c, err, slog.String("name", name))
	return info, err
}

func (f *files) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	ctx, c := f.begin(ctx, "list")
	all, err := f.FS.List(ctx, name, recursive)
	f.end(ctx, c, err, slog.String("name", name), slog.Int("n", len(all)))
	return all, err
}

func (f *files) Mkdir(ctx context.Context, name string, mode uint32) error {
	ctx, c := f.begin(ctx, "mkdir")
	err := f.FS.Mkdir(ctx, name, mode)
	f.end(ctx, c, err, slog.String("name", name))
	return err
}

func (f *files) Rename(ctx context.Context, from, to string) error {
	ctx, c := f.begin(ctx, "rename")
	err := f.FS.Rename(ctx, from, to)
	f.end(ctx, c, err, slog.String("name", from), slog.String("to", to))
	return err
}

func (f *files) Remove(ctx context.Context, name string, recursive bool) error {
	ctx, c := f.begin(ctx, "remove")
	err := f.FS.Remove(ctx, name, recursive)
	f.end(ctx, c, err, slog.String("name", name))
	return err
}

func (f *files) WriteTar(ctx context.Context, name string, w io.Writer) error {
	ctx, c := f.begin(ctx, "write_tar")
	err := f.FS.WriteTar(ctx, name, w)
	f.end(ctx, c, err, slog.String("name", name))
	return err
}

func (f *files) ReadTar(ctx context.Context, name string, r io.Reader) error {
	ctx, c := f.begin(ctx, "read_tar")
	err := f.FS.ReadTar(ctx, name, r)
	f.end(ctx, c, err, slog.String("name", name))
	return err
}

// Watch tells of the whole watch when it ends.
func (f *files) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return func(yield func(atoll.FileEvent, error) bool) {
		ctx, c := f.begin(ctx, "watch")
		var last error
		defer func() { f.end(ctx, c, last, slog.String("name", name)) }()
		for ev, err := range f.FS.Watch(ctx, name, recursive) {
			last = err
			if !yield(ev, err) {
				return
			}
		}
	}
}
