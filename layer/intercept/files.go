package intercept

import (
	"context"
	"io"
	"iter"
	"slices"

	"github.com/seed46cd37a8/atoll"
)

type files struct {
	fs      atoll.FS
	sandbox *sandbox
	below   []string
	err     error // of the Func for the Sub that created f; nil if allowed
}

// invokeCall passes a call on the files to the Func.
func (f *files) invokeCall(ctx context.Context, op, name string, arg any, next Next) error {
	return f.callFunc(ctx, f.newCall(op, name, arg), next)
}

// newCall returns a call on the files.
func (f *files) newCall(op, name string, arg any) *Call {
	c := f.sandbox.newCall(op, arg)
	c.Name, c.Below = name, f.below
	return c
}

// callFunc calls the Func, unless it refused the Sub that created f.
func (f *files) callFunc(ctx context.Context, c *Call, next Next) error {
	if f.err != nil {
		return f.err
	}
	return f.sandbox.f(ctx, c, next)
}

// Sub implements atoll.SubFS. If the Func refuses the call, all calls on the result fail.
func (f *files) Sub(dir string) atoll.FS {
	sub := &files{sandbox: f.sandbox, below: append(slices.Clip(f.below), dir)}
	sub.err = f.invokeCall(context.Background(), "FS.Sub", dir, nil, func(context.Context) error { return nil })
	sub.fs = atoll.SubFiles(f.fs, dir)
	return sub
}

// Read implements atoll.FS. The call ends when the file is open.
func (f *files) Read(ctx context.Context, name string, offset int64) (r io.ReadCloser, info atoll.FileInfo, err error) {
	c := f.newCall("FS.Read", name, offset)
	err = f.callFunc(ctx, c, func(ctx context.Context) (err error) {
		r, info, err = f.fs.Read(ctx, name, offset)
		c.Result = info
		return err
	})
	return r, info, err
}

// Write implements atoll.FS.
func (f *files) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	return invokeFunc(ctx, f.callFunc, f.newCall("FS.Write", name, opts), func(ctx context.Context) (atoll.FileInfo, error) {
		return f.fs.Write(ctx, name, r, opts)
	})
}

// Stat implements atoll.FS.
func (f *files) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	return invokeFunc(ctx, f.callFunc, f.newCall("FS.Stat", name, nil), func(ctx context.Context) (atoll.FileInfo, error) {
		return f.fs.Stat(ctx, name)
	})
}

// List implements atoll.FS.
func (f *files) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	return invokeFunc(ctx, f.callFunc, f.newCall("FS.List", name, recursive), func(ctx context.Context) ([]atoll.FileInfo, error) {
		return f.fs.List(ctx, name, recursive)
	})
}

// Mkdir implements atoll.FS.
func (f *files) Mkdir(ctx context.Context, name string, mode uint32) error {
	return f.invokeCall(ctx, "FS.Mkdir", name, mode, func(ctx context.Context) error { return f.fs.Mkdir(ctx, name, mode) })
}

// Rename implements atoll.FS. The call's Arg is the new name.
func (f *files) Rename(ctx context.Context, from, to string) error {
	return f.invokeCall(ctx, "FS.Rename", from, to, func(ctx context.Context) error { return f.fs.Rename(ctx, from, to) })
}

// Remove implements atoll.FS.
func (f *files) Remove(ctx context.Context, name string, recursive bool) error {
	return f.invokeCall(ctx, "FS.Remove", name, recursive, func(ctx context.Context) error { return f.fs.Remove(ctx, name, recursive) })
}

// WriteTar implements atoll.FS.
func (f *files) WriteTar(ctx context.Context, name string, w io.Writer) error {
	return f.invokeCall(ctx, "FS.WriteTar", name, nil, func(ctx context.Context) error { return f.fs.WriteTar(ctx, name, w) })
}

// ReadTar implements atoll.FS.
func (f *files) ReadTar(ctx context.Context, name string, r io.Reader) error {
	return f.invokeCall(ctx, "FS.ReadTar", name, nil, func(ctx context.Context) error { return f.fs.ReadTar(ctx, name, r) })
}

// Watch implements atoll.FS.
func (f *files) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return streamFunc(ctx, f.callFunc, f.newCall("FS.Watch", name, recursive), func(ctx context.Context) iter.Seq2[atoll.FileEvent, error] {
		return f.fs.Watch(ctx, name, recursive)
	})
}

// Open implements atoll.Editor. The call ends when the file is open.
func (f *files) Open(ctx context.Context, name string, opts atoll.OpenOptions) (file atoll.File, err error) {
	err = f.invokeCall(ctx, "FS.Open", name, opts, func(ctx context.Context) (err error) {
		file, err = atoll.OpenFile(ctx, f.fs, name, opts)
		return err
	})
	return file, err
}

// Change implements atoll.Editor.
func (f *files) Change(ctx context.Context, name string, change atoll.FileChange) error {
	return f.invokeCall(ctx, "FS.Change", name, change, func(ctx context.Context) error {
		return atoll.ChangeFile(ctx, f.fs, name, change)
	})
}

// Link implements atoll.Editor. The call's Arg is the new name.
func (f *files) Link(ctx context.Context, from, to string) error {
	return f.invokeCall(ctx, "FS.Link", from, to, func(ctx context.Context) error { return atoll.LinkFile(ctx, f.fs, from, to) })
}

// Space implements atoll.Editor.
func (f *files) Space(ctx context.Context, name string) (atoll.Space, error) {
	return invokeFunc(ctx, f.callFunc, f.newCall("FS.Space", name, nil), func(ctx context.Context) (atoll.Space, error) {
		return atoll.SpaceOf(ctx, f.fs, name)
	})
}

var (
	_ atoll.SubFS  = (*files)(nil)
	_ atoll.Editor = (*files)(nil)
)
