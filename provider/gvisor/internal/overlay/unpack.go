//go:build linux

package overlay

import (
	"archive/tar"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Unpack applies the layer that r holds to the tree at root, which must be as it was when
// the layer was empty. It leaves mounts in the tree alone.
//
// It trusts the names in the stream: the process must be able to reach nothing but the
// tree.
func Unpack(root string, r io.Reader) error {
	u, err := newUnpacker(root)
	if err != nil {
		return err
	}
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err == nil && h.Typeflag == tar.TypeXGlobalHeader && h.PAXRecords[endRecord] != "" {
			return u.setDirMetadata()
		}
		if err != nil {
			return fmt.Errorf("saved root file system: %w", err)
		}
		if err := u.unpackEntry(h, in); err != nil {
			return fmt.Errorf("restore %s: %w", h.Name, err)
		}
	}
}

type unpacker struct {
	root    string
	device  uint64 // device of the tree; a directory on another one is a mount
	dirs    []*tar.Header
	mounts  []string // names of mounted directories, with a slash at the end, which are left alone
	removed map[string]bool
	buffer  []byte
}

func newUnpacker(root string) (*unpacker, error) {
	var st unix.Stat_t
	if err := unix.Lstat(root, &st); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: root, Err: err}
	}
	return &unpacker{root: root, device: uint64(st.Dev), removed: map[string]bool{}, buffer: make([]byte, 1<<20)}, nil
}

func (u *unpacker) pathOf(name string) string { return filepath.Join(u.root, name) }

// unpackEntry applies one entry. The entry of a directory comes before those of its
// content.
func (u *unpacker) unpackEntry(h *tar.Header, r io.Reader) error {
	if slices.ContainsFunc(u.mounts, func(dir string) bool { return strings.HasPrefix(h.Name, dir) }) {
		return nil
	}
	path := u.pathOf(h.Name)
	switch {
	case h.Typeflag == tar.TypeDir:
		return u.unpackDir(path, h)
	case h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0:
		u.removed[h.Name] = true
		return u.removeTree(path)
	case h.Typeflag == tar.TypeLink && u.removed[h.Linkname]: // gVisor has one such device for all
		return u.removeTree(path)
	}
	err := u.makeEntry(path, h, r)
	if errors.Is(err, fs.ErrExist) {
		err = u.removeTree(path)
		if errors.Is(err, unix.EBUSY) { // the file is a mount
			return nil
		}
		if err == nil {
			err = u.makeEntry(path, h, r)
		}
	}
	return err
}

// makeEntry makes a file that is not a directory. It returns fs.ErrExist before it reads
// from r.
func (u *unpacker) makeEntry(path string, h *tar.Header, r io.Reader) error {
	var err error
	switch h.Typeflag {
	case tar.TypeReg:
		err = u.unpackFile(path, h, r)
	case tar.TypeSymlink:
		err = os.Symlink(h.Linkname, path)
	case tar.TypeLink:
		return os.Link(u.pathOf(h.Linkname), path)
	case tar.TypeFifo:
		err = makeNode(path, unix.S_IFIFO, 0)
	case tar.TypeChar:
		err = makeNode(path, unix.S_IFCHR, unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	case tar.TypeBlock:
		err = makeNode(path, unix.S_IFBLK, unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	default:
		err = fmt.Errorf("unknown type %q", h.Typeflag)
	}
	if err != nil {
		return err
	}
	return setMetadata(path, h)
}

func makeNode(path string, kind uint32, device uint64) error {
	if err := unix.Mknod(path, kind|0o600, int(device)); err != nil {
		return &fs.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}

func (u *unpacker) unpackFile(path string, h *tar.Header, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(u.fillFile(f, h, r), f.Close())
}

// fillFile writes the file's data, and leaves holes where the file had holes.
func (u *unpacker) fillFile(f *os.File, h *tar.Header, r io.Reader) error {
	sparse, ok := h.PAXRecords[sparseRecord]
	if !ok {
		_, err := u.copyData(f, r)
		return err
	}
	size, err := strconv.ParseInt(sparse, 10, 64)
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	extents, err := readExtents(r, size)
	if err != nil {
		return err
	}
	for _, e := range extents {
		n, err := u.copyData(io.NewOffsetWriter(f, e.Off), io.LimitReader(r, e.Len))
		if err == nil && n < e.Len {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return f.Truncate(size)
}

// copyData is io.Copy with a larger buffer: each write is a system call inside.
func (u *unpacker) copyData(w io.Writer, r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, u.buffer)
}

// unpackDir makes or takes over a directory. Its owner, mode and time are set at the end.
func (u *unpacker) unpackDir(path string, h *tar.Header) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case errors.Is(err, unix.ENOENT):
		err = os.Mkdir(path, 0o700)
	case err != nil:
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	case isDir && uint64(st.Dev) != u.device:
		u.mounts = append(u.mounts, h.Name)
		return nil
	case !isDir || h.PAXRecords[xattrPrefix+opaqueXattr] != "":
		if err = u.removeTree(path); err == nil {
			err = os.Mkdir(path, 0o700)
		}
	}
	if err == nil {
		u.dirs = append(u.dirs, h)
	}
	return err
}

// setDirMetadata sets the metadata of the directories, the deepest first. Earlier, a mode
// might block access, and times would change again.
func (u *unpacker) setDirMetadata() error {
	for _, h := range slices.Backward(u.dirs) {
		if err := setMetadata(u.pathOf(h.Name), h); err != nil {
			return fmt.Errorf("restore %s: %w", h.Name, err)
		}
	}
	return nil
}

// removeTree removes the tree at path, if there is one, but no mounts in it.
func (u *unpacker) removeTree(path string) error {
	err := os.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	if uint64(st.Dev) != u.device {
		return &fs.PathError{Op: "remove", Path: path, Err: unix.EBUSY}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := u.removeTree(filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// setMetadata sets owner, mode, attributes and time, in an order in which none resets
// another one.
func setMetadata(path string, h *tar.Header) error {
	if err := os.Lchown(path, h.Uid, h.Gid); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeSymlink {
		if err := unix.Chmod(path, uint32(h.Mode)); err != nil {
			return &fs.PathError{Op: "chmod", Path: path, Err: err}
		}
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		if err := setXattr(path, name, value); err != nil {
			return err
		}
	}
	ts := unix.NsecToTimespec(h.ModTime.UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "utimensat", Path: path, Err: err}
	}
	return nil
}

// aclPrefix begins the names of access control lists, which gVisor encodes because they are
// not text.
const aclPrefix = "system.posix_acl_"

func setXattr(path, name, value string) error {
	data := []byte(value)
	if strings.HasPrefix(name, aclPrefix) {
		var err error
		if data, err = base64.RawStdEncoding.DecodeString(value); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	if err := unix.Lsetxattr(path, name, data, 0); err != nil {
		return fmt.Errorf("set attribute %s of %s: %w", name, path, err)
	}
	return nil
}
