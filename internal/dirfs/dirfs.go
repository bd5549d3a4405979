// Package dirfs serves directories of this machine as an atoll.FS.
//
// New serves one directory, out of which no name and no link leads: every
// access goes through os.Root, so that not even a process that exchanges
// directories for links at the same moment can lead it astray. System serves
// all that the calling process sees, for use inside a sandbox. Either can be
// confined to a directory, out of which nothing leads again.
package dirfs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// ErrEscapes is the cause of an ErrDenied for a name or link that leads out of
// what an FS serves.
var ErrEscapes = errors.New("leads out of the tree")

// Options change what an FS does.
type Options struct {
	// Workdir is the base of relative names; empty means the FS's prefix.
	Workdir string
	// UID and GID own what is made; -1 leaves it to the system. Only root can
	// give files away: for others the owner is always left to the system.
	UID, GID int
	// ReadOnly makes every change ErrDenied.
	ReadOnly bool
}

// An FS is an atoll.FS. All methods may be called at once from many goroutines.
type FS struct {
	opts     Options
	tree     tree
	prefix   string      // the tree's root, as named inside; clean and absolute
	roots    []string    // the tree's root in absolute links: as named inside, as named outside, without links
	modeMask fs.FileMode // the special bits that may be set

	most     room // of a List and of a Watch
	maxNames int  // of a tar stream

	openUnnamed func(dir tree) (*os.File, error) // the function of that name; tests do without
}

// What a caller gets at most. The entries of a List take some 200 bytes of memory
// each besides their paths, which are as long as the tree is deep, and as much
// again on their way to him. For a tar stream the names of a directory are in
// memory until it is packed, a million of them if they are not long.
const (
	maxEntries = 200_000
	maxPaths   = 32 << 20 // bytes of all of them
	maxNames   = 96 << 20 // bytes that they take at once
)

// A room is what may still be held in memory of a tree: whoever fills that must
// not take the memory of who looks into it.
type room struct{ entries, bytes int }

// take makes r smaller by one entry with so many bytes, if that fits.
func (r *room) take(bytes int) bool {
	if r.entries < 1 || r.bytes < bytes {
		return false
	}
	r.entries--
	r.bytes -= bytes
	return true
}

// give takes back take.
func (r *room) give(bytes int) {
	r.entries++
	r.bytes += bytes
}

// New serves directory dir of this machine under the name prefix, which is
// absolute. Close releases it. Names outside prefix and links that lead out are
// ErrDenied wrapping ErrEscapes; absolute links below prefix, or below dir, are
// followed. Set-user-ID and set-group-ID bits are dropped.
func New(prefix, dir string, opts Options) (*FS, error) {
	if !path.IsAbs(prefix) {
		return nil, atoll.Errorf("open", prefix, atoll.ErrInvalid, "the prefix must be absolute")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fail("open", dir, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fail("open", dir, err)
	}
	return newFS(rooted{root}, prefix, dir, fs.ModeSticky, opts), nil
}

// System serves the whole file system of this machine, with the rights of the
// calling process.
func System(opts Options) *FS {
	return newFS(system{}, "/", "/", fs.ModeSticky|fs.ModeSetuid|fs.ModeSetgid, opts)
}

func newFS(t tree, prefix, dir string, special fs.FileMode, opts Options) *FS {
	f := &FS{
		opts: opts, tree: t, prefix: path.Clean(prefix), modeMask: fs.ModePerm | special,
		most: room{maxEntries, maxPaths}, maxNames: maxNames, openUnnamed: openUnnamed,
	}
	f.roots = []string{f.prefix, filepath.ToSlash(dir)}
	if opts.Workdir == "" {
		f.opts.Workdir = f.prefix
	}
	if os.Geteuid() != 0 {
		f.opts.UID, f.opts.GID = -1, -1
	}
	return f
}

// Close releases the directory; calls in progress end well, later ones are
// ErrStopped.
func (f *FS) Close() error { return f.tree.Close() }

// A place is a name as the tree knows it and as it is known inside.
type place struct {
	rel string // slash-separated, below the tree's root; "." is the root
	abs string // absolute, inside
}

// locate finds the place that name stands for.
func (f *FS) locate(ctx context.Context, op, name string) (place, error) {
	if err := ctx.Err(); err != nil {
		return place{}, err
	}
	abs := name
	if !path.IsAbs(name) {
		abs = path.Join(f.opts.Workdir, name)
	}
	abs = path.Clean(abs)
	if strings.ContainsRune(abs, 0) {
		return place{}, atoll.Errorf(op, name, atoll.ErrInvalid, "the name contains a NUL byte")
	}
	rel, ok := Below(f.prefix, abs)
	if !ok {
		return place{}, fail(op, name, ErrEscapes)
	}
	return place{rel, abs}, nil
}

// locateForChange is locate for what a read-only FS refuses.
func (f *FS) locateForChange(ctx context.Context, op, name string) (place, error) {
	if f.opts.ReadOnly {
		return place{}, atoll.Errorf(op, name, atoll.ErrDenied, "read-only file system")
	}
	return f.locate(ctx, op, name)
}

// Below returns what follows dir in name, "." if they are the same; both are
// clean, absolute and with slashes.
func Below(dir, name string) (rel string, ok bool) {
	if name == dir {
		return ".", true
	}
	if dir != "/" {
		dir += "/"
	}
	return strings.CutPrefix(name, dir)
}

// Within reports whether name, which is below workdir if it is relative, is one of dirs or
// below one. All others are absolute.
func Within(dirs []string, workdir, name string) bool {
	if !path.IsAbs(name) {
		name = path.Join(workdir, name)
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		_, ok := Below(path.Clean(dir), path.Clean(name))
		return ok
	})
}

// join appends the base name of a child, as the system has it. There are many.
func (p place) join(name string) place {
	return place{child(p.rel, name), child(p.abs, name)}
}

func child(dir, name string) string {
	switch dir {
	case ".":
		return name
	case "/":
		return dir + name
	}
	return dir + "/" + name
}

// inTree does something at the name rel of the tree. Where that fails because
// of an absolute link on the way, which os.Root never follows, it is done again
// at the place where the link leads inside the tree, if it does.
func (f *FS) inTree(rel string, follow bool, do func(rel string) error) error {
	err := do(rel)
	if !escapes(err) {
		return err
	}
	real, rerr := f.resolve(rel, follow)
	if rerr != nil || real == rel {
		return err
	}
	return do(real)
}

// resolve returns rel without symbolic links, following the last element only
// if told so. What does not exist is left as it is named. The result is for
// convenience, not for safety: it goes through the tree again.
func (f *FS) resolve(rel string, follow bool) (string, error) {
	const maxLinks = 40
	done, rest := ".", strings.Split(rel, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." && done == "." {
			return "", ErrEscapes
		}
		next := path.Join(done, part)
		if part == "" || part == "." || part == ".." || len(rest) == 0 && !follow {
			done = next
			continue
		}
		target, err := f.tree.Readlink(next)
		if err != nil { // not a link, or nothing at all
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		if path.IsAbs(target) {
			inside, ok := f.inside(target)
			if !ok {
				return "", ErrEscapes
			}
			done, target = ".", inside
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}

// inside maps the target of an absolute link to the tree.
func (f *FS) inside(target string) (rel string, ok bool) {
	target = path.Clean(target)
	for _, name := range f.roots {
		if rel, ok = Below(name, target); ok {
			return rel, true
		}
	}
	return "", false
}

// escapes reports whether err is os.Root's way of saying so, for which it has
// no exported error.
func escapes(err error) bool {
	return errors.Is(err, ErrEscapes) || err != nil && cause(err).Error() == "path escapes from parent"
}

// cause strips what the os package wraps around an error: it names paths that
// mean nothing inside the sandbox.
func cause(err error) error {
	for {
		switch e := err.(type) {
		case *fs.PathError:
			err = e.Err
		case *os.LinkError:
			err = e.Err
		case *os.SyscallError:
			err = e.Err
		default:
			return err
		}
	}
}

// fail gives err its kind. Errors that have one, and those of a context, are
// returned as they are.
func fail(op, name string, err error) error {
	var known *atoll.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if escapes(err) {
		return atoll.E(op, name, atoll.ErrDenied, ErrEscapes)
	}
	err = cause(err)
	return atoll.E(op, name, kindOf(err), err)
}

func kindOf(err error) atoll.Kind {
	var much *tooMuch
	switch {
	case errors.As(err, &much):
		return atoll.ErrExhausted
	case errors.Is(err, errReplaced):
		return atoll.ErrConflict
	case errors.Is(err, fs.ErrClosed):
		return atoll.ErrStopped
	case isAny(err, syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EMLINK):
		return atoll.ErrExhausted
	case isAny(err, syscall.EROFS):
		return atoll.ErrDenied
	case isAny(err, syscall.ENOTEMPTY, syscall.ENOTDIR, syscall.EISDIR, syscall.EINVAL, syscall.ELOOP,
		syscall.ENAMETOOLONG, syscall.ENXIO, syscall.EXDEV, syscall.EBUSY, syscall.ETXTBSY):
		return atoll.ErrInvalid
	}
	return atoll.KindOf(err)
}

func isAny(err error, targets ...syscall.Errno) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	for _, t := range targets {
		if errno == t {
			return true
		}
	}
	return false
}

// ctxReader ends with ctx.
type ctxReader struct {
	ctx context.Context
	io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

var _ atoll.FS = (*FS)(nil)
