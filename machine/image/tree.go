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

// Limits on the contents of an image, besides Options.Limit. They are far above the
// sizes of real images.
const (
	maxEntries = 2 << 20   // files and directories
	maxDirs    = 512 << 10 // directories, each of which takes more memory
	maxNames   = 128 << 20 // bytes of all their names
	maxDepth   = 512       // of nested directories
	maxName    = 4096      // PATH_MAX
	maxLinks   = 40        // followed on the way to one file, as the kernel does
	maxOpen    = 128       // directories kept open
)

// A tree unpacks layers on top of each other into one directory.
//
// Layers are hostile. resolveDir resolves names as inside a chroot: an absolute link
// or one with too many ".." leads back into the tree, as it will when the image runs.
// The last step, which touches the disk, goes through an os.Root with a name of one
// component, so that even a wrong resolution could not leave the directory.
type tree struct {
	top    *dir
	owners bool // keep owners and capabilities
	log    *slog.Logger
	limit  int64 // of bytes

	bytes   int64  // of files, holes included; never more than limit
	made    counts // never more than most
	most    counts
	written map[entryKey]bool // entries of the current layer
	skipped map[entryKey]bool // devices and the like
	opened  []*dir            // directories whose root is set, oldest first; not top
	buf     []byte
}

// counts holds the numbers that determine the memory of a tree.
type counts struct {
	entries, dirs int
	names         int // bytes
}

// An entryKey identifies a name in a directory. It is short since a tree has one for
// many files: paths grow with the depth of the tree.
type entryKey struct {
	dir  *dir
	base string
}

// A dir is a directory in the tree. The tree has a dir for every directory, since
// it alone creates and removes them.
type dir struct {
	name     string // in its parent; "" is the top
	depth    int    // 0 is the top
	parent   *dir   // the top is its own
	children map[string]*dir
	root     *os.Root // nil when not open

	// The attributes that applyAttributes sets. Until then only the owner of the
	// directory may write to it.
	mode     fs.FileMode
	uid, gid int
	modified time.Time // zero: not set
}

// newTree returns a tree that unpacks into the empty directory name. Its files may
// have limit bytes in total, or any number if limit is negative.
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
		skipped: map[entryKey]bool{}, buf: make([]byte, 256<<10),
	}, nil
}

// close closes all open directories.
func (t *tree) close() {
	for _, d := range t.opened {
		d.root.Close()
		d.root = nil
	}
	t.opened = nil
	t.top.root.Close()
}

// unpackLayer unpacks one layer, a tar stream.
func (t *tree) unpackLayer(ctx context.Context, r io.Reader) error {
	t.written = map[entryKey]bool{}
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return newDamageError(err, "not a tar stream")
		}
		if err := t.unpackEntry(ctx, hdr, tr); err != nil {
			return fmt.Errorf("entry %s: %w", quoteName(hdr.Name), err)
		}
	}
}

// unpackEntry unpacks one entry of a layer.
func (t *tree) unpackEntry(ctx context.Context, hdr *tar.Header, r io.Reader) error {
	name, err := cleanName(hdr.Name)
	if err != nil {
		return err
	}
	parent, base := splitName(name)
	if err := t.countEntry(base); err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if name == "" {
		return t.describeDir(t.top, hdr)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		return t.applyWhiteout(parent, hidden)
	}
	d, err := t.resolveDir(t.top, parent, true)
	if err != nil {
		return err
	}
	t.markWritten(d, base)
	switch hdr.Typeflag {
	case tar.TypeDir:
		return t.unpackDir(d, base, hdr)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return t.unpackFile(ctx, d, base, hdr, r)
	case tar.TypeSymlink:
		return t.unpackSymlink(d, base, hdr)
	case tar.TypeLink:
		return t.unpackHardLink(d, base, hdr)
	}
	// Devices and pipes: a sandbox gets a /dev of its own, and on the host
	// they would be a way out.
	t.log.Debug("unpack", "skip", hdr.Name, "type", string(hdr.Typeflag))
	t.markSkipped(d, base)
	return t.removeEntry(d, base)
}

// countEntry counts an entry with the given name, and refuses one too many.
func (t *tree) countEntry(name string) error {
	t.made.entries++
	t.made.names += len(name)
	switch {
	case t.made.entries > t.most.entries:
		return newLimitError("has more than %d files", t.most.entries)
	case t.made.names > t.most.names:
		return newLimitError("has files with more than %d bytes of names", t.most.names)
	}
	return nil
}

// cleanName returns the name of an entry relative to the top, "" for the top. It
// treats an absolute name as relative to the top, as tar programs do.
func cleanName(name string) (string, error) {
	if len(name) > maxName {
		return "", newDamageError(nil, "its name is longer than %d bytes", maxName)
	}
	if strings.ContainsRune(name, 0) {
		return "", newDamageError(nil, "its name has a NUL byte")
	}
	c := path.Clean(strings.TrimLeft(name, "/"))
	if c == "." {
		return "", nil
	}
	if c == ".." || strings.HasPrefix(c, "../") {
		return "", newDamageError(nil, "leads out of the image")
	}
	return c, nil
}

// splitName splits a clean name into directory and base; the parent of an entry at the
// top is "".
func splitName(name string) (parent, base string) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(i, 0)], name[i+1:]
}

// quoteName quotes a name for a message, and shortens a long one.
func quoteName(name string) string { return strconv.Quote(clipText(name)) }

func clipText(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}

func joinPath(dir, base string) string {
	if dir == "" {
		return base
	}
	return dir + "/" + base
}

// fullPath returns the path of d below the top, without links; "" for the top.
func (d *dir) fullPath() string {
	names := make([]string, d.depth)
	for ; d.depth > 0; d = d.parent {
		names[d.depth-1] = d.name
	}
	return strings.Join(names, "/")
}

// markWritten records that the current layer contains base in d, and so the
// directories above it.
func (t *tree) markWritten(d *dir, base string) {
	delete(t.skipped, entryKey{d, base})
	for !t.written[entryKey{d, base}] {
		t.written[entryKey{d, strings.Clone(base)}] = true // a clone, which does not retain the whole path
		if d == t.top {
			return
		}
		d, base = d.parent, d.name
	}
}

// markSkipped records that the tree omits base in d.
func (t *tree) markSkipped(d *dir, base string) { t.skipped[entryKey{d, strings.Clone(base)}] = true }

// resolveDir resolves a name from the directory d as a process in a chroot would. If a
// directory is missing, it creates it when create is set, else the error is
// fs.ErrNotExist.
func (t *tree) resolveDir(d *dir, name string, create bool) (*dir, error) {
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
		target, err := t.readLink(d, base)
		if errors.Is(err, fs.ErrNotExist) && create {
			if err := t.countEntry(base); err != nil {
				return nil, err
			}
			t.markWritten(d, base)
			if d, err = t.makeDir(d, base); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if links++; links > maxLinks || len(target)+len(rest) > maxName {
			return nil, newDamageError(nil, "goes through too many links")
		}
		if path.IsAbs(target) {
			d = t.top
		}
		rest = target + "/" + rest
	}
	return d, nil
}

// readLink returns the target of a link; any other file is an error.
func (t *tree) readLink(d *dir, base string) (string, error) {
	root, err := t.openDir(d)
	if err != nil {
		return "", err
	}
	target, err := root.Readlink(base)
	if errors.Is(err, syscall.EINVAL) {
		return "", newDamageError(nil, "%s in its path is not a directory", quoteName(joinPath(d.fullPath(), base)))
	}
	return target, err
}

// openDir returns the open directory d, which is valid until the next call.
func (t *tree) openDir(d *dir) (*os.Root, error) {
	if d.root != nil {
		return d.root, nil
	}
	var root *os.Root
	var err error
	if d.parent.root != nil {
		root, err = d.parent.root.OpenRoot(d.name)
	} else {
		root, err = t.top.root.OpenRoot(d.fullPath())
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

// makeDir creates a directory with the attributes of one that no entry describes.
func (t *tree) makeDir(parent *dir, base string) (*dir, error) {
	if t.made.dirs++; t.made.dirs > t.most.dirs {
		return nil, newLimitError("has more than %d directories", t.most.dirs)
	}
	if parent.depth == maxDepth {
		return nil, newLimitError("has directories deeper than %d", maxDepth)
	}
	root, err := t.openDir(parent)
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

// unpackDir unpacks a directory. An existing one retains its contents.
func (t *tree) unpackDir(parent *dir, base string, hdr *tar.Header) error {
	if d := parent.children[base]; d != nil {
		return t.describeDir(d, hdr)
	}
	d, err := t.makeDir(parent, base)
	if errors.Is(err, fs.ErrExist) {
		if err := t.removeEntry(parent, base); err != nil {
			return err
		}
		d, err = t.makeDir(parent, base)
	}
	if err != nil {
		return err
	}
	return t.describeDir(d, hdr)
}

// describeDir records the attributes that the directory d gets in the end.
func (t *tree) describeDir(d *dir, hdr *tar.Header) error {
	if hdr.Typeflag != tar.TypeDir {
		return newDamageError(nil, "the top of an image must be a directory")
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
	const nobody = 1<<32 - 1 // for chown, it means "do not change"
	if hdr.Uid < 0 || hdr.Uid >= nobody || hdr.Gid < 0 || hdr.Gid >= nobody {
		return newDamageError(nil, "owner %d:%d is out of range", hdr.Uid, hdr.Gid)
	}
	return nil
}

// unpackSymlink unpacks a symbolic link. Its target is only text here.
func (t *tree) unpackSymlink(d *dir, base string, hdr *tar.Header) error {
	if err := checkOwner(hdr); err != nil {
		return err
	}
	if hdr.Linkname == "" || len(hdr.Linkname) >= maxName {
		return newDamageError(nil, "link target of %d bytes: it must have 1 to 4095", len(hdr.Linkname))
	}
	root, err := t.openDir(d)
	if err != nil {
		return err
	}
	err = root.Symlink(hdr.Linkname, base)
	if errors.Is(err, fs.ErrExist) {
		if err := t.removeEntry(d, base); err != nil {
			return err
		}
		err = root.Symlink(hdr.Linkname, base)
	}
	if err != nil || !t.owners {
		return err
	}
	return root.Lchown(base, hdr.Uid, hdr.Gid)
}

// unpackHardLink unpacks a hard link to a file that came before it.
func (t *tree) unpackHardLink(d *dir, base string, hdr *tar.Header) error {
	target, err := cleanName(hdr.Linkname)
	if err != nil {
		return fmt.Errorf("link to %s: %w", quoteName(hdr.Linkname), err)
	}
	parent, targetBase := splitName(target)
	td, err := t.resolveDir(t.top, parent, false)
	if errors.Is(err, fs.ErrNotExist) {
		return newDamageError(nil, "linked to %s, which is not there", quoteName(hdr.Linkname))
	}
	if err != nil {
		return fmt.Errorf("link to %s: %w", quoteName(hdr.Linkname), err)
	}
	if t.skipped[entryKey{td, targetBase}] {
		t.markSkipped(d, base)
		return t.removeEntry(d, base)
	}
	if td == d && targetBase == base {
		return newDamageError(nil, "linked to itself")
	}
	from, to := joinPath(td.fullPath(), targetBase), joinPath(d.fullPath(), base)
	err = t.top.root.Link(from, to)
	if errors.Is(err, fs.ErrExist) {
		if err := t.removeEntry(d, base); err != nil {
			return err
		}
		err = t.top.root.Link(from, to)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // the latter for directories
		return newDamageError(nil, "linked to %s, which is not a file of the image", quoteName(hdr.Linkname))
	}
	return err
}

// applyAttributes gives all directories their final attributes.
func (t *tree) applyAttributes(ctx context.Context) error { return t.applyDirAttributes(ctx, t.top) }

// applyDirAttributes does so below d, from the bottom up, as a directory may become
// inaccessible.
func (t *tree) applyDirAttributes(ctx context.Context, d *dir) error {
	for _, sub := range d.children {
		if err := t.applyDirAttributes(ctx, sub); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	root, err := t.openDir(d)
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
