// Package lazyfs implements atoll.FS over a file system that it opens on every call.
package lazyfs

import (
	"context"
	"io"
	"iter"

	"github.com/seed46cd37a8/atoll"
)

// An FS is an atoll.FS that consists of one function. The function opens the file system
// with these names for the operation op, calls fn with it, and returns the error of fn or
// of the opening.
type FS func(ctx context.Context, op string, names []string, fn func(context.Context, atoll.FS) error) error

// Read implements atoll.FS.
func (f FS) Read(ctx context.Context, name string, offset int64) (r io.ReadCloser, info atoll.FileInfo, err error) {
	err = f(ctx, "read", []string{name}, func(ctx context.Context, fs atoll.FS) (err error) {
		r, info, err = fs.Read(ctx, name, offset)
		return err
	})
	return r, info, err
}

// Write implements atoll.FS.
func (f FS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (info atoll.FileInfo, err error) {
	err = f(ctx, "write", []string{name}, func(ctx context.Context, fs atoll.FS) (err error) {
		info, err = fs.Write(ctx, name, r, opts)
		return err
	})
	return info, err
}

// Stat implements atoll.FS.
func (f FS) Stat(ctx context.Context, name string) (info atoll.FileInfo, err error) {
	err = f(ctx, "stat", []string{name}, func(ctx context.Context, fs atoll.FS) (err error) {
		info, err = fs.Stat(ctx, name)
		return err
	})
	return info, err
}

// List implements atoll.FS.
func (f FS) List(ctx context.Context, name string, recursive bool) (list []atoll.FileInfo, err error) {
	err = f(ctx, "list", []string{name}, func(ctx context.Context, fs atoll.FS) (err error) {
		list, err = fs.List(ctx, name, recursive)
		return err
	})
	return list, err
}

// Mkdir implements atoll.FS.
func (f FS) Mkdir(ctx context.Context, name string, mode uint32) error {
	return f(ctx, "mkdir", []string{name}, func(ctx context.Context, fs atoll.FS) error { return fs.Mkdir(ctx, name, mode) })
}

// Rename implements atoll.FS.
func (f FS) Rename(ctx context.Context, from, to string) error {
	return f(ctx, "rename", []string{from, to}, func(ctx context.Context, fs atoll.FS) error { return fs.Rename(ctx, from, to) })
}

// Remove implements atoll.FS.
func (f FS) Remove(ctx context.Context, name string, recursive bool) error {
	return f(ctx, "remove", []string{name}, func(ctx context.Context, fs atoll.FS) error { return fs.Remove(ctx, name, recursive) })
}

// WriteTar implements atoll.FS.
func (f FS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	return f(ctx, "pack", []string{name}, func(ctx context.Context, fs atoll.FS) error { return fs.WriteTar(ctx, name, w) })
}

// ReadTar implements atoll.FS.
func (f FS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	return f(ctx, "unpack", []string{name}, func(ctx context.Context, fs atoll.FS) error { return fs.ReadTar(ctx, name, r) })
}

// Watch implements atoll.FS.
func (f FS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return func(yield func(atoll.FileEvent, error) bool) {
		err := f(ctx, "watch", []string{name}, func(ctx context.Context, fs atoll.FS) error {
			for event, err := range fs.Watch(ctx, name, recursive) {
				if err != nil {
					return err // the last pair
				}
				if !yield(event, nil) {
					return nil
				}
			}
			return nil
		})
		if err != nil {
			yield(atoll.FileEvent{}, err)
		}
	}
}

// Open implements atoll.Editor.
func (f FS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (file atoll.File, err error) {
	err = f(ctx, "open", []string{name}, func(ctx context.Context, fs atoll.FS) (err error) {
		file, err = atoll.OpenFile(ctx, fs, name, opts)
		return err
	})
	return file, err
}

// Change implements atoll.Editor.
func (f FS) Change(ctx context.Context, name string, change atoll.FileChange) error {
	return f(ctx, "change", []string{name}, func(ctx context.Context, fs atoll.FS) error {
		return atoll.ChangeFile(ctx, fs, name, change)
	})
}

// Link implements atoll.Editor.
func (f FS) Link(ctx context.Context, from, to string) error {
	return f(ctx, "link", []string{from, to}, func(ctx context.Context, fs atoll.FS) error {
		return atoll.LinkFile(ctx, fs, from, to)
	})
}

// Space implements atoll.Editor.
func (f FS) Space(ctx context.Context, name string) (space atoll.Space, err error) {
	err = f(ctx, "space", []string{name}, func(ctx context.Context, fs atoll.FS) (err error) {
		space, err = atoll.SpaceOf(ctx, fs, name)
		return err
	})
	return space, err
}

// Sub implements atoll.SubFS. It opens the file system that has dir, for all names below
// dir.
func (f FS) Sub(dir string) atoll.FS {
	return FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		return f(ctx, op, []string{dir}, func(ctx context.Context, fs atoll.FS) error {
			return fn(ctx, atoll.SubFiles(fs, dir))
		})
	})
}

var (
	_ atoll.FS     = FS(nil)
	_ atoll.SubFS  = FS(nil)
	_ atoll.Editor = FS(nil)
)
