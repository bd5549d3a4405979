//go:build linux

package tartree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Overwrite writes the files of a tar stream, with their owners, over those of a tree that
// is in use. It replaces each file atomically: at any moment a name stands for the old or
// the new file, so that programs in the tree still run if Overwrite is interrupted. It
// retains files that the stream does not have, and links to directories, which it follows.
// Of extended attributes it writes capabilities only.
func Overwrite(dir string, from io.Reader) error {
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = writeEntry(dir, filepath.Join(dir, filepath.Clean("/"+h.Name)), h, r)
		}
		if err != nil {
			if h != nil {
				err = fmt.Errorf("%s: %w", h.Name, err)
			}
			return err
		}
	}
}

// writeEntry writes one entry of a stream to path.
func writeEntry(dir, path string, h *tar.Header, data io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return makeDirectory(path, h)
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	made := filepath.Join(filepath.Dir(path), ".atoll-new")
	if err := os.Remove(made); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer os.Remove(made) // rename(2) leaves it if both names are links to one file
	if err := createNode(dir, made, h, data); err != nil {
		return err
	}
	return os.Rename(made, path)
}

// makeDirectory creates a directory, or sets the mode and owner of an existing one.
func makeDirectory(path string, h *tar.Header) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrExist) {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			return fmt.Errorf("the stream has a directory here, the tree does not: %w", errors.Join(err, unix.ENOTDIR))
		}
	} else if err != nil {
		return err
	}
	return setAttributes(path, h)
}

// createNode creates the file, link or device that a header describes.
func createNode(dir, path string, h *tar.Header, data io.Reader) error {
	mode := uint32(h.Mode & 0o7777)
	device := int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	var err error
	switch h.Typeflag {
	case tar.TypeReg:
		err = createFile(path, data)
	case tar.TypeLink:
		return os.Link(filepath.Join(dir, filepath.Clean("/"+h.Linkname)), path)
	case tar.TypeSymlink:
		return errors.Join(os.Symlink(h.Linkname, path), os.Lchown(path, h.Uid, h.Gid))
	case tar.TypeChar:
		err = unix.Mknod(path, unix.S_IFCHR|mode, device)
	case tar.TypeBlock:
		err = unix.Mknod(path, unix.S_IFBLK|mode, device)
	case tar.TypeFifo:
		err = unix.Mkfifo(path, mode)
	default:
		return fmt.Errorf("unknown type %q of tar entry", h.Typeflag)
	}
	if err != nil {
		return err
	}
	return setAttributes(path, h)
}

func createFile(path string, data io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, data)
	return errors.Join(err, f.Close())
}

// setAttributes sets the owner of a file that is not a link, and then the attributes that a
// change of owner resets: mode and capabilities. At last it sets the time.
func setAttributes(path string, h *tar.Header) error {
	if err := os.Chown(path, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Chmod(path, uint32(h.Mode&0o7777)); err != nil {
		return err
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok && name == capabilityAttr {
			if err := unix.Setxattr(path, name, []byte(value), 0); err != nil {
				return err
			}
		}
	}
	return os.Chtimes(path, time.Time{}, h.ModTime)
}
