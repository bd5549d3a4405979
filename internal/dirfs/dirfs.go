// Package dirfs serves directories of this machine as an atoll.FS.
//
// New serves one directory, and no name or link leads out of it: every access
// goes through os.Root, so that not even a process that concurrently replaces
// directories by links can make it escape. System serves all files that the
// calling process sees, for use inside a sandbox. Confine restricts either to a
// directory, and again nothing leads out of that.
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
// the tree of an FS.
var ErrEscapes = errors.New("leads out of the tree")

// Options configure an FS.
type Options struct {
	// Workdir is the base of relative names; empty means the FS's prefix.
	Workdir string
	// UID and GID own new files; -1 leaves the choice to the system. Only root can
	// give files away: for other users the system always chooses the owner.
	UID, GID int
	// ReadOnly makes every change fail with ErrDenied.
	ReadOnly bool
	// SetID lets New set the set-user-ID and set-group-ID bits of files.
	SetID bool
	// Live is the same directory tree under the same names, as running programs see it; nil if
	// there are none. Write and ReadTar give new files their names there, so that programs which
	// watch a directory get events. If that fails, they do it without events.
	Live atoll.FS
}

// An FS is an atoll.FS. Its methods are safe for concurrent use.
type FS struct {
	opts     Options
	tree     tree
	prefix   string      // the tree's root, by its name inside; clean and absolute
	roots    []string    // the tree's root in absolute links: by its name inside, by its name outside, without links
	modeMask fs.FileMode // permissions and the special bits that may be set

	keepsInodes bool // the file system of the tree's root never renumbers its files

	most     budget // of a List and of a Watch
	maxNames int    // of a tar stream

	openUnnamed func(dir tree) (*os.File, error) // the function openUnnamed; tests replace it
}

// Limits on the result of a call. The entries of a List take some 200 bytes of memory
// each, besides their paths, which are as long as the tree is deep, and as much again
// on the way to the caller. For a tar stream the names of a directory stay in memory
// until it is packed: a million names if they are short.
const (
	maxEntries = 200_000
	maxPaths   = 32 << 20 // bytes of all paths
	maxNames   = 96 << 20 // bytes of all names in memory
)

// A budget bounds the memory for the entries of a tree: a program that fills the tree
// must not exhaust the memory of a program that lists it.
type budget struct{ entries, bytes int }

// reserveEntry reduces r by one entry with that many bytes, and reports whether it
// fits.
func (r *budget) reserveEntry(bytes int) bool {
	if r.entries < 1 || r.bytes < bytes {
		return false
	}
	r.entries--
	r.bytes -= bytes
	return true
}

// releaseEntry reverts reserveEntry.
func (r *budget) releaseEntry(bytes int) {
	r.entries++
	r.bytes += bytes
}

// New serves the directory dir of this machine under the absolute name prefix.
// Close releases it. Names outside prefix and links that lead out fail with
// ErrDenied, which wraps ErrEscapes; the FS follows absolute links below prefix or
// below dir. It drops set-user-ID and set-group-ID bits unless Options.SetID is
// set.
func New(prefix, dir string, opts Options) (*FS, error) {
	if !path.IsAbs(prefix) {
		return nil, atoll.Errorf("open", prefix, atoll.ErrInvalid, "the prefix must be absolute")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, wrapError("open", dir, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, wrapError("open", dir, err)
	}
	special := fs.ModeSticky
	if opts.SetID {
		special |= fs.ModeSetuid | fs.ModeSetgid
	}
	return newFS(rootTree{root}, prefix, dir, special, opts), nil
}

// System serves the whole file system of this machine, with the rights of the
// calling process.
func System(opts Options) *FS {
	return newFS(systemTree{}, "/", "/", fs.ModeSticky|fs.ModeSetuid|fs.ModeSetgid, opts)
}

func newFS(t tree, prefix, dir string, special fs.FileMode, opts Options) *FS {
	f := &FS{
		opts: opts, tree: t, prefix: path.Clean(prefix), modeMask: fs.ModePerm | special,
		most: budget{maxEntries, maxPaths}, maxNames: maxNames, openUnnamed: openUnnamed, keepsInodes: keepsInodes(t),
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

// Close releases the directory. Calls in progress complete; later ones fail with
// ErrStopped.
func (f *FS) Close() error { return f.tree.Close() }

// A location is a name relative to the tree, and the same name inside.
type location struct {
	rel string // slash-separated, below the tree's root; "." is the root
	abs string // absolute, inside
}

// resolveName returns the location of name, which may be relative to the workdir.
func (f *FS) resolveName(ctx context.Context, op, name string) (location, error) {
	if err := ctx.Err(); err != nil {
		return location{}, err
	}
	abs := name
	if !path.IsAbs(name) {
		abs = path.Join(f.opts.Workdir, name)
	}
	abs = path.Clean(abs)
	if strings.ContainsRune(abs, 0) {
		return location{}, atoll.Errorf(op, name, atoll.ErrInvalid, "the name contains a NUL byte")
	}
	rel, ok := Below(f.prefix, abs)
	if !ok {
		return location{}, wrapError(op, name, ErrEscapes)
	}
	return location{rel, abs}, nil
}

// resolveForChange is resolveName for changes, which a read-only FS refuses.
func (f *FS) resolveForChange(ctx context.Context, op, name string) (location, error) {
	if f.opts.ReadOnly {
		return location{}, atoll.Errorf(op, name, atoll.ErrDenied, "read-only file system")
	}
	return f.resolveName(ctx, op, name)
}

// Below returns the part of name after dir, "." if they are the same; both are
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

// Within reports whether name, which is relative to workdir unless it is absolute, is one
// of dirs or below one. workdir and dirs are absolute.
func Within(dirs []string, workdir, name string) bool {
	if !path.IsAbs(name) {
		name = path.Join(workdir, name)
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		_, ok := Below(path.Clean(dir), path.Clean(name))
		return ok
	})
}

// joinName appends the base name of a child, as the system returned it. It is faster
// than path.Join: a tree has many names.
func (p location) joinName(name string) location {
	return location{joinPath(p.rel, name), joinPath(p.abs, name)}
}

func joinPath(dir, name string) string {
	switch dir {
	case ".":
		return name
	case "/":
		return dir + name
	}
	return dir + "/" + name
}

// inTree calls do with the name rel in the tree. If do fails because of an absolute
// link in the path, which os.Root never follows, and the link leads into the tree,
// inTree calls do again with the name where it leads.
func (f *FS) inTree(rel string, follow bool, do func(rel string) error) error {
	err := do(rel)
	if !isEscape(err) {
		return err
	}
	real, rerr := f.resolveLinks(rel, follow)
	if rerr != nil || real == rel {
		return err
	}
	return do(real)
}

// resolveLinks returns rel without symbolic links. It follows a link in the last
// element only if follow is set, and does not change elements that do not exist. Do
// not rely on the result for safety: use it with the tree again.
func (f *FS) resolveLinks(rel string, follow bool) (string, error) {
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
		if err != nil { // not a link, or it does not exist
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		if path.IsAbs(target) {
			inside, ok := f.mapIntoTree(target)
			if !ok {
				return "", ErrEscapes
			}
			done, target = ".", inside
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}

// mapIntoTree maps the target of an absolute link to a name in the tree.
func (f *FS) mapIntoTree(target string) (rel string, ok bool) {
	target = path.Clean(target)
	for _, name := range f.roots {
		if rel, ok = Below(name, target); ok {
			return rel, true
		}
	}
	return "", false
}

// isEscape reports whether err is ErrEscapes or the equivalent error of os.Root, which
// has no exported error for it.
func isEscape(err error) bool {
	return errors.Is(err, ErrEscapes) || err != nil && rootCause(err).Error() == "path escapes from parent"
}

// rootCause removes the wrappers of the os package from an error: they name paths that
// mean nothing inside the sandbox.
func rootCause(err error) error {
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

// wrapError gives err its kind. It returns errors with a kind, and those of a context,
// unchanged.
func wrapError(op, name string, err error) error {
	var known *atoll.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if isEscape(err) {
		return atoll.E(op, name, atoll.ErrDenied, ErrEscapes)
	}
	err = rootCause(err)
	return atoll.E(op, name, kindOf(err), err)
}

func kindOf(err error) atoll.Kind {
	var much *limitExceeded
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

// A ctxReader fails when ctx has ended.
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
