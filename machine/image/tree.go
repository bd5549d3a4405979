//go:build linux

package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Limits on what an image may consist of, besides Options.Limit. They are far
// above what images have.
const (
	maxEntries = 2 << 20   // files and directories
	maxDirs    = 512 << 10 // directories, about each of which more is remembered
	maxNames   = 128 << 20 // bytes of all their names
	maxDepth   = 512       // of directories in each other
	maxName    = 4096      // PATH_MAX
	maxLinks   = 40        // followed on the way to one file, as the kernel does
	maxOpen    = 128       // directories kept open
)

// A tree unpacks layers on top of each other into one directory.
//
// What is unpacked is hostile. Names are resolved as inside a chroot, by walk:
// an absolute link or one with too many ".." leads back into the tree, as it
// will when the image runs. The last step, which touches the disk, goes through
// an os.Root with a name of one component, so that even a wrong resolution
// could not leave the directory.
type tree struct {
	top    *dir
	owners bool // keep owners and capabilities
	log    *slog.Logger
	limit  int64 // of bytes

	bytes   int64  // of files, holes included; never more than limit
	made    counts // never more than most
	most    counts
	written map[place]bool // what the layer at hand has brought
	skipped map[place]bool // devices and the like
	opened  []*dir         // whose root is set, oldest first; not top
	buf     []byte
}

// counts are what a tree has to remember.
type counts struct {
	entries, dirs int
	names         int // bytes
}

// A place is a name in a directory. What is remembered of many files has to be
// short: paths grow with the depth of the tree.
type place struct {
	dir  *dir
	base string
}

// A dir is a directory in the tree. There is one for every directory, since
// the tree alone makes and removes them.
type dir struct {
	name     string // in its parent; "" is the top
	depth    int    // 0 is the top
	parent   *dir   // the top is its own
	children map[string]*dir
	root     *os.Root // nil when not open

	// What it is to look like in the end. While the tree is unpacked its
	// owner, and only it, may write.
	mode     fs.FileMode
	uid, gid int
	modified time.Time // zero: as it comes
}

// newTree returns a tree that is unpacked into the empty directory name, whose
// files have limit bytes at most, or any number if limit is negative.
func newTree(name string, owners bool, limit int64, log *slog.Logger) (*tree, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	top := &dir{root: root, mode: 0o755}
	top.parent = top
	if limit < 0 {
		limit = math.MaxInt64
	}
	return &tree{
		top: top, owners: owners, log: log, limit: limit, most: counts{maxEntries, maxDirs, maxNames},
		skipped: map[place]bool{}, buf: make([]byte, 256<<10),
	}, nil
}

// close closes the directories that are open.
func (t *tree) close() {
	for _, d := range t.opened {
		d.root.Close()
		d.root = nil
	}
	t.opened = nil
	t.top.root.Close()
}

// layer unpacks one layer, a tar stream.
func (t *tree) layer(ctx context.Context, r io.Reader) error {
	t.written = map[place]bool{}
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return damaged(err, "not a tar stream")
		}
		if err := t.entry(ctx, hdr, tr); err != nil {
			return fmt.Errorf("entry %s: %w", brief(hdr.Name), err)
		}
	}
}

// entry unpacks one entry of a layer.
func (t *tree) entry(ctx context.Context, hdr *tar.Header, r io.Reader) error {
	name, err := clean(hdr.Name)
	if err != nil {
		return err
	}
	parent, base := split(name)
	if err := t.count(base); err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if name == "" {
		return t.describe(t.top, hdr)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		return t.whiteout(parent, hidden)
	}
	d, err := t.walk(t.top, parent, true)
	if err != nil {
		return err
	}
	t.mark(d, base)
	switch hdr.Typeflag {
	case tar.TypeDir:
		return t.dir(d, base, hdr)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return t.file(ctx, d, base, hdr, r)
	case tar.TypeSymlink:
		return t.symlink(d, base, hdr)
	case tar.TypeLink:
		return t.link(d, base, hdr)
	}
	// Devices and pipes: a sandbox gets a /dev of its own, and on the host
	// they would be a way out.
	t.log.Debug("unpack", "skip", hdr.Name, "type", string(hdr.Typeflag))
	t.skip(d, base)
	return t.remove(d, base)
}

// count counts what is made in the tree.
func (t *tree) count(name string) error {
	t.made.entries++
	t.made.names += len(name)
	switch {
	case t.made.entries > t.most.entries:
		return tooBig("has more than %d files", t.most.entries)
	case t.made.names > t.most.names:
		return tooBig("has files with more than %d bytes of names", t.most.names)
	}
	return nil
}

// clean returns the name of an entry relative to the top, "" for the top. An
// absolute name is taken as relative to it, as everywhere.
func clean(name string) (string, error) {
	if len(name) > maxName {
		return "", damaged(nil, "its name is longer than %d bytes", maxName)
	}
	if strings.ContainsRune(name, 0) {
		return "", damaged(nil, "its name has a NUL in it")
	}
	c := path.Clean(strings.TrimLeft(name, "/"))
	if c == "." {
		return "", nil
	}
	if c == ".." || strings.HasPrefix(c, "../") {
		return "", damaged(nil, "leads out of the image")
	}
	return c, nil
}

// split divides a clean name; the parent of what is at the top is "".
func split(name string) (parent, base string) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(i, 0)], name[i+1:]
}

// brief quotes a name for a message, in which a long one has no place.
func brief(name string) string { return strconv.Quote(clip(name)) }

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}

func join(dir, base string) string {
	if dir == "" {
		return base
	}
	return dir + "/" + base
}

// path is d's, without links; that of the top is "".
func (d *dir) path() string {
	names := make([]string, d.depth)
	for ; d.depth > 0; d = d.parent {
		names[d.depth-1] = d.name
	}
	return strings.Join(names, "/")
}

// mark notes that the layer at hand brought what is called base in d, and so the
// directories above.
func (t *tree) mark(d *dir, base string) {
	delete(t.skipped, place{d, base})
	for !t.written[place{d, base}] {
		t.written[place{d, strings.Clone(base)}] = true // not the whole path that it is a part of
		if d == t.top {
			return
		}
		d, base = d.parent, d.name
	}
}

// skip notes that what is called base in d is left out.
func (t *tree) skip(d *dir, base string) { t.skipped[place{d, strings.Clone(base)}] = true }

// walk resolves a name from the directory d as a process in a chroot would,
// making missing directories when create is set. The error is fs.ErrNotExist when
// one is missing otherwise.
func (t *tree) walk(d *dir, name string, create bool) (*dir, error) {
	links := 0
	rest := name
	for rest != "" {
		var base string
		base, rest, _ = strings.Cut(rest, "/")
		switch base {
		case "", ".":
			continue
		case "..":
			d = d.parent
			continue
		}
		if child := d.children[base]; child != nil {
			d = child
			continue
		}
		target, err := t.readlink(d, base)
		if errors.Is(err, fs.ErrNotExist) && create {
			if err := t.count(base); err != nil {
				return nil, err
			}
			t.mark(d, base)
			if d, err = t.mkdir(d, base); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if links++; links > maxLinks || len(target)+len(rest) > maxName {
			return nil, damaged(nil, "goes through too many links")
		}
		if path.IsAbs(target) {
			d = t.top
		}
		rest = target + "/" + rest
	}
	return d, nil
}

// readlink returns the target of a link; anything else there is no way on.
func (t *tree) readlink(d *dir, base string) (string, error) {
	root, err := t.open(d)
	if err != nil {
		return "", err
	}
	target, err := root.Readlink(base)
	if errors.Is(err, syscall.EINVAL) {
		return "", damaged(nil, "%s on its way is not a directory", brief(join(d.path(), base)))
	}
	return target, err
}

// open returns the open directory d, good until the next call.
func (t *tree) open(d *dir) (*os.Root, error) {
	if d.root != nil {
		return d.root, nil
	}
	var root *os.Root
	var err error
	if d.parent.root != nil {
		root, err = d.parent.root.OpenRoot(d.name)
	} else {
		root, err = t.top.root.OpenRoot(d.path())
	}
	if err != nil {
		return nil, err
	}
	if len(t.opened) == maxOpen {
		t.opened[0].root.Close()
		t.opened[0].root = nil
		t.opened = append(t.opened[:0], t.opened[1:]...)
	}
	d.root = root
	t.opened = append(t.opened, d)
	return root, nil
}

// mkdir makes a directory that looks as one does that no entry describes.
func (t *tree) mkdir(parent *dir, base string) (*dir, error) {
	if t.made.dirs++; t.made.dirs > t.most.dirs {
		return nil, tooBig("has more than %d directories", t.most.dirs)
	}
	if parent.depth == maxDepth {
		return nil, tooBig("has directories deeper than %d", maxDepth)
	}
	root, err := t.open(parent)
	if err != nil {
		return nil, err
	}
	if err := root.Mkdir(base, 0o700); err != nil {
		return nil, err
	}
	d := &dir{name: strings.Clone(base), depth: parent.depth + 1, parent: parent, mode: 0o755}
	if parent.children == nil {
		parent.children = map[string]*dir{}
	}
	parent.children[d.name] = d
	return d, nil
}

// dir unpacks a directory. One that is there keeps what is in it.
func (t *tree) dir(parent *dir, base string, hdr *tar.Header) error {
	if d := parent.children[base]; d != nil {
		return t.describe(d, hdr)
	}
	d, err := t.mkdir(parent, base)
	if errors.Is(err, fs.ErrExist) {
		if err := t.remove(parent, base); err != nil {
			return err
		}
		d, err = t.mkdir(parent, base)
	}
	if err != nil {
		return err
	}
	return t.describe(d, hdr)
}

// describe notes what the directory d is to look like.
func (t *tree) describe(d *dir, hdr *tar.Header) error {
	if hdr.Typeflag != tar.TypeDir {
		return damaged(nil, "the top of an image must be a directory")
	}
	if err := checkOwner(hdr); err != nil {
		return err
	}
	d.mode, d.uid, d.gid, d.modified = modeOf(hdr), hdr.Uid, hdr.Gid, hdr.ModTime
	return nil
}

func modeOf(hdr *tar.Header) fs.FileMode {
	return hdr.FileInfo().Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

func checkOwner(hdr *tar.Header) error {
	const nobody = 1<<32 - 1 // chown would take it for "leave as it is"
	if hdr.Uid < 0 || hdr.Uid >= nobody || hdr.Gid < 0 || hdr.Gid >= nobody {
		return damaged(nil, "owner %d:%d is out of range", hdr.Uid, hdr.Gid)
	}
	return nil
}

// symlink unpacks a symbolic link. Its target is only text here.
func (t *tree) symlink(d *dir, base string, hdr *tar.Header) error {
	if err := checkOwner(hdr); err != nil {
		return err
	}
	if hdr.Linkname == "" || len(hdr.Linkname) >= maxName {
		return damaged(nil, "a link to %d bytes of name", len(hdr.Linkname))
	}
	root, err := t.open(d)
	if err != nil {
		return err
	}
	err = root.Symlink(hdr.Linkname, base)
	if errors.Is(err, fs.ErrExist) {
		if err := t.remove(d, base); err != nil {
			return err
		}
		err = root.Symlink(hdr.Linkname, base)
	}
	if err != nil || !t.owners {
		return err
	}
	return root.Lchown(base, hdr.Uid, hdr.Gid)
}

// link unpacks a hard link to a file that came before it.
func (t *tree) link(d *dir, base string, hdr *tar.Header) error {
	target, err := clean(hdr.Linkname)
	if err != nil {
		return fmt.Errorf("link to %s: %w", brief(hdr.Linkname), err)
	}
	parent, targetBase := split(target)
	td, err := t.walk(t.top, parent, false)
	if errors.Is(err, fs.ErrNotExist) {
		return damaged(nil, "linked to %s, which is not there", brief(hdr.Linkname))
	}
	if err != nil {
		return fmt.Errorf("link to %s: %w", brief(hdr.Linkname), err)
	}
	if t.skipped[place{td, targetBase}] {
		t.skip(d, base)
		return t.remove(d, base)
	}
	if td == d && targetBase == base {
		return damaged(nil, "linked to itself")
	}
	from, to := join(td.path(), targetBase), join(d.path(), base)
	err = t.top.root.Link(from, to)
	if errors.Is(err, fs.ErrExist) {
		if err := t.remove(d, base); err != nil {
			return err
		}
		err = t.top.root.Link(from, to)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // the latter for directories
		return damaged(nil, "linked to %s, which is not a file of the image", brief(hdr.Linkname))
	}
	return err
}

// finish gives all directories their final look.
func (t *tree) finish(ctx context.Context) error { return t.finishDir(ctx, t.top) }

// finishDir does so from the bottom up, as a directory may become one that
// cannot be entered.
func (t *tree) finishDir(ctx context.Context, d *dir) error {
	for _, sub := range d.children {
		if err := t.finishDir(ctx, sub); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	root, err := t.open(d)
	if err != nil {
		return err
	}
	if t.owners {
		if err := root.Chown(".", d.uid, d.gid); err != nil {
			return err
		}
	}
	if err := root.Chtimes(".", d.modified, d.modified); err != nil {
		return err
	}
	return root.Chmod(".", d.mode)
}
