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

// subMutants break the promises about an FS that is confined to a directory.
var subMutants = []mutant{
	newMutant("confines nothing", subGroup+"names are relative to the directory, and paths are absolute", onMockConfined(nil)),
	newMutant("checks only names", subGroup+"no call leaves the directory by .., an absolute name or a link",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS { return rewritingFS{fs, dir, checkNameOnly} })),
	newMutant("compares directories by prefix", subGroup+"no call leaves the directory by .., an absolute name or a link",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS {
			return prefixFS{atoll.SubFiles(fs, dir), rewritingFS{fs, dir, allowAnyName}}
		})),
	newMutant("checks for links before the call", subGroup+"a process that swaps directories for links leads no call out",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS { return rewritingFS{fs, dir, checkThenUse} })),
	newMutant("reads denied files outside", subGroup+"no call leaves the directory by .., an absolute name or a link",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS {
			return fallbackFS{atoll.SubFiles(fs, dir), rewritingFS{fs, dir, allowAnyName}}
		})),
	newMutant("confines one name of two", subGroup+"no call leaves the directory by .., an absolute name or a link",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS {
			return halfConfinedFS{atoll.SubFiles(fs, dir), rewritingFS{fs, dir, allowAnyName}}
		})),
	newMutant("watches outside", subGroup+"no call leaves the directory by .., an absolute name or a link",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS {
			return unconfinedWatchFS{atoll.SubFiles(fs, dir), rewritingFS{fs, dir, allowAnyName}}
		})),
	newMutant("finds the directory once", subGroup+"each call looks up the directory, follows links to it, and never makes, moves or removes it",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS {
			if _, err := fs.Stat(context.Background(), dir); err != nil {
				return rewritingFS{fs, dir, func(context.Context, rewritingFS, string, string) (string, error) { return "", err }}
			}
			return atoll.SubFiles(fs, dir)
		})),
	newMutant("makes the directory", subGroup+"each call looks up the directory, follows links to it, and never makes, moves or removes it",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS {
			_ = fs.Mkdir(context.Background(), dir, 0)
			return atoll.SubFiles(fs, dir)
		})),
	newMutant("forgets the outer directory", subGroup+"a nested directory is confined to both directories",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS { return innerOnlyFS{atoll.SubFiles(fs, dir), fs, dir} })),
	newMutant("follows no absolute link", subGroup+"links that stay in the directory are followed, absolute ones too",
		onMockConfined(func(fs atoll.FS, dir string) atoll.FS { return noAbsLinkFS{atoll.SubFiles(fs, dir)} })),
}

const subGroup = "sub/"

// onMockConfined returns a function that opens a mock whose files confine themselves with sub. If sub
// is nil, they have no method Sub.
func onMockConfined(sub func(fs atoll.FS, dir string) atoll.FS) func(*testing.T) atoll.Provider {
	return onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox { return confiningSandbox{atoll.SandboxLayer{Sandbox: sb}, sub} })
}

// A confiningSandbox has a confinedFS.
type confiningSandbox struct {
	atoll.SandboxLayer
	sub func(fs atoll.FS, dir string) atoll.FS
}

func (c confiningSandbox) Files() atoll.FS {
	if c.sub == nil {
		return struct{ atoll.FS }{atoll.Files(c.Sandbox)}
	}
	return confinedFS{atoll.Files(c.Sandbox), c.sub}
}

// A confinedFS implements Sub with a function.
type confinedFS struct {
	atoll.FS
	sub func(fs atoll.FS, dir string) atoll.FS
}

func (f confinedFS) Sub(dir string) atoll.FS { return f.sub(f.FS, dir) }

// A rewritingFS passes each name through a function before it calls fs.
type rewritingFS struct {
	fs      atoll.FS
	dir     string
	rewrite func(ctx context.Context, b rewritingFS, op, name string) (string, error)
}

// allowAnyName allows all names.
func allowAnyName(_ context.Context, b rewritingFS, _, name string) (string, error) {
	return b.absName(name), nil
}

// absDir returns the absolute path of the directory.
func (b rewritingFS) absDir() string {
	if path.IsAbs(b.dir) {
		return path.Clean(b.dir)
	}
	return path.Join("/work", b.dir)
}

// absName returns the absolute path of a name.
func (b rewritingFS) absName(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(b.absDir(), name)
}

// checkNameOnly denies names that lead out, and ignores links.
func checkNameOnly(_ context.Context, b rewritingFS, op, name string) (string, error) {
	abs := b.absName(name)
	if abs != b.absDir() && !strings.HasPrefix(abs, b.absDir()+"/") {
		return "", atoll.E(op, name, atoll.ErrDenied, nil)
	}
	return abs, nil
}

// checkThenUse denies names with links on the way, but checks before the call uses the name.
func checkThenUse(ctx context.Context, b rewritingFS, op, name string) (string, error) {
	abs, err := checkNameOnly(ctx, b, op, name)
	for at := abs; err == nil && at != b.absDir() && at != "/"; at = path.Dir(at) {
		if info, serr := b.fs.Stat(ctx, at); serr == nil && info.Type == atoll.TypeSymlink {
			err = atoll.E(op, name, atoll.ErrDenied, nil)
		}
	}
	return abs, err
}

func (b rewritingFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	name, err := b.rewrite(ctx, b, "read", name)
	if err != nil {
		return nil, atoll.FileInfo{}, err
	}
	return b.fs.Read(ctx, name, offset)
}

func (b rewritingFS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	name, err := b.rewrite(ctx, b, "write", name)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	return b.fs.Write(ctx, name, r, opts)
}

func (b rewritingFS) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	name, err := b.rewrite(ctx, b, "stat", name)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	return b.fs.Stat(ctx, name)
}

func (b rewritingFS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	name, err := b.rewrite(ctx, b, "list", name)
	if err != nil {
		return nil, err
	}
	return b.fs.List(ctx, name, recursive)
}

func (b rewritingFS) Mkdir(ctx context.Context, name string, mode uint32) error {
	name, err := b.rewrite(ctx, b, "mkdir", name)
	if err != nil {
		return err
	}
	return b.fs.Mkdir(ctx, name, mode)
}

func (b rewritingFS) Rename(ctx context.Context, from, to string) error {
	from, err := b.rewrite(ctx, b, "rename", from)
	if err == nil {
		to, err = b.rewrite(ctx, b, "rename", to)
	}
	if err != nil {
		return err
	}
	return b.fs.Rename(ctx, from, to)
}

func (b rewritingFS) Remove(ctx context.Context, name string, recursive bool) error {
	name, err := b.rewrite(ctx, b, "remove", name)
	if err != nil {
		return err
	}
	return b.fs.Remove(ctx, name, recursive)
}

func (b rewritingFS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	name, err := b.rewrite(ctx, b, "read", name)
	if err != nil {
		return err
	}
	return b.fs.WriteTar(ctx, name, w)
}

func (b rewritingFS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	name, err := b.rewrite(ctx, b, "write", name)
	if err != nil {
		return err
	}
	return b.fs.ReadTar(ctx, name, r)
}

func (b rewritingFS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	name, err := b.rewrite(ctx, b, "watch", name)
	if err != nil {
		return func(yield func(atoll.FileEvent, error) bool) { yield(atoll.FileEvent{}, err) }
	}
	return b.fs.Watch(ctx, name, recursive)
}

// A fallbackFS reads denied files without confinement.
type fallbackFS struct {
	atoll.FS
	all rewritingFS
}

func (h fallbackFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	r, info, err := h.FS.Read(ctx, name, offset)
	if atoll.KindOf(err) == atoll.ErrDenied {
		return h.all.Read(ctx, name, offset)
	}
	return r, info, err
}

// A halfConfinedFS checks only the first name of Rename.
type halfConfinedFS struct {
	atoll.FS
	all rewritingFS
}

func (o halfConfinedFS) Rename(ctx context.Context, from, to string) error {
	if _, err := o.Stat(ctx, from); err != nil {
		return err
	}
	return o.all.Rename(ctx, from, to)
}

// An unconfinedWatchFS watches without confinement.
type unconfinedWatchFS struct {
	atoll.FS
	all rewritingFS
}

func (w unconfinedWatchFS) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return w.all.Watch(ctx, name, recursive)
}

// A prefixFS takes "in-not" for a directory below "in".
type prefixFS struct {
	atoll.FS
	all rewritingFS
}

func (n prefixFS) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	if strings.HasPrefix(n.all.absName(name), n.all.absDir()) {
		return n.all.Stat(ctx, n.all.absName(name))
	}
	return n.FS.Stat(ctx, name)
}

// An innerOnlyFS confines a nested directory only to itself.
type innerOnlyFS struct {
	atoll.FS
	all atoll.FS
	dir string
}

func (l innerOnlyFS) Sub(dir string) atoll.FS {
	if !path.IsAbs(dir) {
		dir = path.Join(l.dir, dir)
	}
	return innerOnlyFS{atoll.SubFiles(l.all, dir), l.all, dir}
}

// A noAbsLinkFS refuses to read through absolute links.
type noAbsLinkFS struct{ atoll.FS }

func (l noAbsLinkFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	for at := name; at != "." && at != "/"; at = path.Dir(at) {
		if info, err := l.Stat(ctx, at); err == nil && path.IsAbs(info.Target) {
			return nil, atoll.FileInfo{}, atoll.E("read", name, atoll.ErrDenied, nil)
		}
	}
	return l.FS.Read(ctx, name, offset)
}
