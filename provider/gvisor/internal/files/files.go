//go:build linux

// Package files is the file system of a gVisor sandbox seen from the host.
//
// What is on a volume or another directory of the host is read and written
// there directly, which is fast and works while the sandbox is stopped. All
// else exists inside the sentry only and is reached through a guest. A
// symbolic link that leads out of a host directory means something inside
// only, so such a name is the guest's business too.
package files

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// A Mount is a directory of the host that the sandbox sees at Target.
type Mount struct {
	Source   string
	Target   string
	ReadOnly bool
}

// Options say what the files of a sandbox are made of.
type Options struct {
	Workdir string // base of relative names
	Mounts  []Mount
	Root    int // the host's id, of user and group, of who is root inside; 0 for itself
	// Inside returns the file system as it is seen from inside. Its error is
	// that of every call that needs it.
	Inside func(ctx context.Context) (atoll.FS, error)
}

// FS is an atoll.FS.
type FS struct {
	opts   Options
	mounts []mounted // longest target first
}

type mounted struct {
	target string
	fs     *dirfs.FS
}

// New opens the host directories. A file, or one that is gone, is left to
// Inside.
func New(opts Options) *FS {
	f := &FS{opts: opts}
	for _, m := range opts.Mounts {
		d, err := dirfs.New(m.Target, m.Source, dirfs.Options{
			Workdir: opts.Workdir, UID: -1, GID: -1, ReadOnly: m.ReadOnly,
		})
		if err == nil {
			f.mounts = append(f.mounts, mounted{path.Clean(m.Target), d})
		}
	}
	slices.SortFunc(f.mounts, func(a, b mounted) int { return cmp.Compare(len(b.target), len(a.target)) })
	return f
}

// Close closes the host directories. Calls in progress may fail.
func (f *FS) Close() error {
	var errs []error
	for _, m := range f.mounts {
		errs = append(errs, m.fs.Close())
	}
	return errors.Join(errs...)
}

// abs makes name absolute and clean.
func (f *FS) abs(name string) string {
	if !path.IsAbs(name) {
		name = path.Join(f.opts.Workdir, name)
	}
	return path.Clean(name)
}

// outside returns the file system of the host directory that holds name, or
// nil. With whole, what is asked about is the tree at name, so that a
// directory with another mount below it is not enough, and neither is the
// mount point itself, which only the inside can rename or remove.
func (f *FS) outside(name string, whole bool) *dirfs.FS {
	if whole && slices.ContainsFunc(f.mounts, func(m mounted) bool { return below(m.target, name) }) {
		return nil
	}
	for _, m := range f.mounts {
		if m.target == name || below(name, m.target) {
			return m.fs
		}
	}
	return nil
}

// below reports whether name is in the tree under dir.
func below(name, dir string) bool { return dir == "/" || strings.HasPrefix(name, dir+"/") }

// owner translates the owner of a file of the host.
func (f *FS) owner(info *atoll.FileInfo) {
	if f.opts.Root != 0 && info.UID == f.opts.Root {
		info.UID, info.GID = 0, 0
	}
}

// do calls fn with the file system that name is on.
func (f *FS) do(ctx context.Context, name string, whole bool, fn func(atoll.FS) error) error {
	if d := f.outside(name, whole); d != nil {
		if err := fn(d); !leadsOut(err) {
			return err
		}
	}
	inside, err := f.opts.Inside(ctx)
	if err != nil {
		return err
	}
	return fn(inside)
}

// leadsOut reports whether the name itself leads out of the host directory, of
// which dirfs tells before it reads or writes anything; an entry of an archive
// that does is ErrInvalid, here as inside.
func leadsOut(err error) bool {
	return errors.Is(err, dirfs.ErrEscapes) && atoll.KindOf(err) == atoll.ErrDenied
}

// Read implements atoll.FS.
func (f *FS) Read(ctx context.Context, name string, offset int64) (r io.ReadCloser, info atoll.FileInfo, err error) {
	name = f.abs(name)
	err = f.do(ctx, name, false, func(fs atoll.FS) (err error) {
		r, info, err = fs.Read(ctx, name, offset)
		return err
	})
	f.owner(&info)
	return r, info, err
}

// Write implements atoll.FS.
func (f *FS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (info atoll.FileInfo, err error) {
	name = f.abs(name)
	err = f.do(ctx, name, false, func(fs atoll.FS) (err error) {
		info, err = fs.Write(ctx, name, r, opts)
		return err
	})
	f.owner(&info)
	return info, err
}

// Stat implements atoll.FS.
func (f *FS) Stat(ctx context.Context, name string) (info atoll.FileInfo, err error) {
	name = f.abs(name)
	err = f.do(ctx, name, false, func(fs atoll.FS) (err error) {
		info, err = fs.Stat(ctx, name)
		return err
	})
	f.owner(&info)
	return info, err
}

// List implements atoll.FS.
func (f *FS) List(ctx context.Context, name string, recursive bool) (list []atoll.FileInfo, err error) {
	name = f.abs(name)
	err = f.do(ctx, name, true, func(fs atoll.FS) (err error) {
		list, err = fs.List(ctx, name, recursive)
		return err
	})
	for i := range list {
		f.owner(&list[i])
	}
	return list, err
}

// Mkdir implements atoll.FS.
func (f *FS) Mkdir(ctx context.Context, name string, mode uint32) error {
	name = f.abs(name)
	return f.do(ctx, name, false, func(fs atoll.FS) error { return fs.Mkdir(ctx, name, mode) })
}

// Rename implements atoll.FS.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	from, to = f.abs(from), f.abs(to)
	if a, b := f.outside(from, true), f.outside(to, true); a != nil && a == b {
		if err := a.Rename(ctx, from, to); !leadsOut(err) {
			return err
		}
	}
	inside, err := f.opts.Inside(ctx)
	if err != nil {
		return err
	}
	return inside.Rename(ctx, from, to)
}

// Remove implements atoll.FS.
func (f *FS) Remove(ctx context.Context, name string, recursive bool) error {
	name = f.abs(name)
	return f.do(ctx, name, true, func(fs atoll.FS) error { return fs.Remove(ctx, name, recursive) })
}

// WriteTar implements atoll.FS.
func (f *FS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	name = f.abs(name)
	return f.do(ctx, name, true, func(fs atoll.FS) error { return fs.WriteTar(ctx, name, w) })
}

// ReadTar implements atoll.FS. A stream that was begun on the host cannot be
// begun again inside, so a directory with mounts below it is unpacked inside
// from the first.
func (f *FS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	name = f.abs(name)
	return f.do(ctx, name, true, func(fs atoll.FS) error { return fs.ReadTar(ctx, name, r) })
}

// Watch implements atoll.FS.
func (f *FS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	name = f.abs(name)
	if d := f.outside(name, true); d != nil {
		return d.Watch(ctx, name, recursive)
	}
	return func(yield func(atoll.FileEvent, error) bool) {
		inside, err := f.opts.Inside(ctx)
		if err != nil {
			yield(atoll.FileEvent{}, err)
			return
		}
		for event, err := range inside.Watch(ctx, name, recursive) {
			if !yield(event, err) {
				return
			}
		}
	}
}

var _ atoll.FS = (*FS)(nil)
