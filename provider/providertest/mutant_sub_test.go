package providertest_test

import (
	"context"
	"io"
	"iter"
	"path"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// unconfined break the promises about an FS that is confined to a directory.
var unconfined = []mutant{
	breaks("confines nothing", subGroup+"names are relative to the directory, and paths are absolute", confining(nil)),
	breaks("looks for a way out in names only", subGroup+"neither .., nor an absolute name, nor a link leads out of the directory, by any call",
		confining(func(fs atoll.FS, dir string) atoll.FS { return bent{fs, dir, byName} })),
	breaks("knows a directory by the beginning of its name", subGroup+"neither .., nor an absolute name, nor a link leads out of the directory, by any call",
		confining(func(fs atoll.FS, dir string) atoll.FS {
			return neighbour{atoll.SubFiles(fs, dir), bent{fs, dir, anyName}}
		})),
	breaks("looks for links before it goes", subGroup+"a process that puts links where directories were leads nothing out",
		confining(func(fs atoll.FS, dir string) atoll.FS { return bent{fs, dir, byLook} })),
	breaks("looks outside for what leads out", subGroup+"neither .., nor an absolute name, nor a link leads out of the directory, by any call",
		confining(func(fs atoll.FS, dir string) atoll.FS {
			return helpful{atoll.SubFiles(fs, dir), bent{fs, dir, anyName}}
		})),
	breaks("confines one name of two", subGroup+"neither .., nor an absolute name, nor a link leads out of the directory, by any call",
		confining(func(fs atoll.FS, dir string) atoll.FS {
			return oneName{atoll.SubFiles(fs, dir), bent{fs, dir, anyName}}
		})),
	breaks("watches what is outside", subGroup+"neither .., nor an absolute name, nor a link leads out of the directory, by any call",
		confining(func(fs atoll.FS, dir string) atoll.FS {
			return watcher{atoll.SubFiles(fs, dir), bent{fs, dir, anyName}}
		})),
	breaks("finds the directory once", subGroup+"the directory is found at each call, by following links, and never made, moved or removed",
		confining(func(fs atoll.FS, dir string) atoll.FS {
			if _, err := fs.Stat(context.Background(), dir); err != nil {
				return bent{fs, dir, func(context.Context, bent, string, string) (string, error) { return "", err }}
			}
			return atoll.SubFiles(fs, dir)
		})),
	breaks("makes the directory", subGroup+"the directory is found at each call, by following links, and never made, moved or removed",
		confining(func(fs atoll.FS, dir string) atoll.FS {
			_ = fs.Mkdir(context.Background(), dir, 0)
			return atoll.SubFiles(fs, dir)
		})),
	breaks("forgets what it was confined to", subGroup+"a directory of a directory is confined to both",
		confining(func(fs atoll.FS, dir string) atoll.FS { return loose{atoll.SubFiles(fs, dir), fs, dir} })),
	breaks("follows no absolute link", subGroup+"links that stay in the directory are followed, absolute ones too",
		confining(func(fs atoll.FS, dir string) atoll.FS { return literal{atoll.SubFiles(fs, dir)} })),
}

const subGroup = "sub/"

// confining opens mutants whose files confine themselves as sub says; nil is for
// those that do not know how to.
func confining(sub func(fs atoll.FS, dir string) atoll.FS) func(*testing.T) atoll.Provider {
	return sandboxes(func(sb atoll.Sandbox) atoll.Sandbox { return confiner{atoll.SandboxLayer{Sandbox: sb}, sub} })
}

type confiner struct {
	atoll.SandboxLayer
	sub func(fs atoll.FS, dir string) atoll.FS
}

func (c confiner) Files() atoll.FS {
	if c.sub == nil {
		return struct{ atoll.FS }{atoll.Files(c.Sandbox)}
	}
	return confinedFS{atoll.Files(c.Sandbox), c.sub}
}

type confinedFS struct {
	atoll.FS
	sub func(fs atoll.FS, dir string) atoll.FS
}

func (f confinedFS) Sub(dir string) atoll.FS { return f.sub(f.FS, dir) }

// bent is an FS whose names go to another by way of a function, which says what
// they are there.
type bent struct {
	fs   atoll.FS
	dir  string
	bend func(ctx context.Context, b bent, op, name string) (string, error)
}

// anyName lets all names out.
func anyName(_ context.Context, b bent, _, name string) (string, error) {
	return b.abs(name), nil
}

// top is the directory in full.
func (b bent) top() string {
	if path.IsAbs(b.dir) {
		return path.Clean(b.dir)
	}
	return path.Join("/work", b.dir)
}

func (b bent) abs(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(b.top(), name)
}

// byName lets no name out, and links wherever they lead.
func byName(_ context.Context, b bent, op, name string) (string, error) {
	abs := b.abs(name)
	if abs != b.top() && !strings.HasPrefix(abs, b.top()+"/") {
		return "", atoll.E(op, name, atoll.ErrDenied, nil)
	}
	return abs, nil
}

// byLook lets no link on the way, when it looks.
func byLook(ctx context.Context, b bent, op, name string) (string, error) {
	abs, err := byName(ctx, b, op, name)
	for at := abs; err == nil && at != b.top() && at != "/"; at = path.Dir(at) {
		if info, serr := b.fs.Stat(ctx, at); serr == nil && info.Type == atoll.TypeSymlink {
			err = atoll.E(op, name, atoll.ErrDenied, nil)
		}
	}
	return abs, err
}

func (b bent) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	name, err := b.bend(ctx, b, "read", name)
	if err != nil {
		return nil, atoll.FileInfo{}, err
	}
	return b.fs.Read(ctx, name, offset)
}

func (b bent) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	name, err := b.bend(ctx, b, "write", name)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	return b.fs.Write(ctx, name, r, opts)
}

func (b bent) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	name, err := b.bend(ctx, b, "stat", name)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	return b.fs.Stat(ctx, name)
}

func (b bent) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	name, err := b.bend(ctx, b, "list", name)
	if err != nil {
		return nil, err
	}
	return b.fs.List(ctx, name, recursive)
}

func (b bent) Mkdir(ctx context.Context, name string, mode uint32) error {
	name, err := b.bend(ctx, b, "mkdir", name)
	if err != nil {
		return err
	}
	return b.fs.Mkdir(ctx, name, mode)
}

func (b bent) Rename(ctx context.Context, from, to string) error {
	from, err := b.bend(ctx, b, "rename", from)
	if err == nil {
		to, err = b.bend(ctx, b, "rename", to)
	}
	if err != nil {
		return err
	}
	return b.fs.Rename(ctx, from, to)
}

func (b bent) Remove(ctx context.Context, name string, recursive bool) error {
	name, err := b.bend(ctx, b, "remove", name)
	if err != nil {
		return err
	}
	return b.fs.Remove(ctx, name, recursive)
}

func (b bent) WriteTar(ctx context.Context, name string, w io.Writer) error {
	name, err := b.bend(ctx, b, "read", name)
	if err != nil {
		return err
	}
	return b.fs.WriteTar(ctx, name, w)
}

func (b bent) ReadTar(ctx context.Context, name string, r io.Reader) error {
	name, err := b.bend(ctx, b, "write", name)
	if err != nil {
		return err
	}
	return b.fs.ReadTar(ctx, name, r)
}

func (b bent) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	name, err := b.bend(ctx, b, "watch", name)
	if err != nil {
		return func(yield func(atoll.FileEvent, error) bool) { yield(atoll.FileEvent{}, err) }
	}
	return b.fs.Watch(ctx, name, recursive)
}

// helpful reads elsewhere what is denied.
type helpful struct {
	atoll.FS
	all bent
}

func (h helpful) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	r, info, err := h.FS.Read(ctx, name, offset)
	if atoll.KindOf(err) == atoll.ErrDenied {
		return h.all.Read(ctx, name, offset)
	}
	return r, info, err
}

type oneName struct {
	atoll.FS
	all bent
}

func (o oneName) Rename(ctx context.Context, from, to string) error {
	if _, err := o.Stat(ctx, from); err != nil {
		return err
	}
	return o.all.Rename(ctx, from, to)
}

type watcher struct {
	atoll.FS
	all bent
}

func (w watcher) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return w.all.Watch(ctx, name, recursive)
}

// neighbour takes in-not for a part of in.
type neighbour struct {
	atoll.FS
	all bent
}

func (n neighbour) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	if strings.HasPrefix(n.all.abs(name), n.all.top()) {
		return n.all.Stat(ctx, n.all.abs(name))
	}
	return n.FS.Stat(ctx, name)
}

// loose is confined to the last of its directories.
type loose struct {
	atoll.FS
	all atoll.FS
	dir string
}

func (l loose) Sub(dir string) atoll.FS {
	if !path.IsAbs(dir) {
		dir = path.Join(l.dir, dir)
	}
	return loose{atoll.SubFiles(l.all, dir), l.all, dir}
}

// literal reads no absolute link.
type literal struct{ atoll.FS }

func (l literal) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	for at := name; at != "." && at != "/"; at = path.Dir(at) {
		if info, err := l.Stat(ctx, at); err == nil && path.IsAbs(info.Target) {
			return nil, atoll.FileInfo{}, atoll.E("read", name, atoll.ErrDenied, nil)
		}
	}
	return l.FS.Read(ctx, name, offset)
}
