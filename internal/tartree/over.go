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

// Over writes the files of a tar stream, with their owners, over those of a tree that is in
// use: at each moment a name stands for all of what was there or all of what is to be, so a
// program in it can be run also when this was cut short. What the stream does not have
// stays, and so do links to directories, which names lead through. Of extended attributes
// capabilities are kept.
func Over(dir string, from io.Reader) error {
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = over(dir, filepath.Join(dir, filepath.Clean("/"+h.Name)), h, r)
		}
		if err != nil {
			if h != nil {
				err = fmt.Errorf("%s: %w", h.Name, err)
			}
			return err
		}
	}
}

// over writes one entry of a stream to where it belongs.
func over(dir, path string, h *tar.Header, data io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return directory(path, h)
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
	defer os.Remove(made) // also where two names of one file were to change places
	if err := put(dir, made, h, data); err != nil {
		return err
	}
	return os.Rename(made, path)
}

// directory makes a directory, or gives the one that is there its mode and owner.
func directory(path string, h *tar.Header) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrExist) {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			return fmt.Errorf("is to be a directory, and is none: %w", errors.Join(err, unix.ENOTDIR))
		}
	} else if err != nil {
		return err
	}
	return give(path, h)
}

// put makes what a header describes.
func put(dir, path string, h *tar.Header, data io.Reader) error {
	mode := uint32(h.Mode & 0o7777)
	device := int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	var err error
	switch h.Typeflag {
	case tar.TypeReg:
		err = file(path, data)
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
		return fmt.Errorf("is of kind %q, which is unknown", h.Typeflag)
	}
	if err != nil {
		return err
	}
	return give(path, h)
}

func file(path string, data io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, data)
	return errors.Join(err, f.Close())
}

// give gives what is at a path, which is no link, its owner and all that goes with a change
// of that.
func give(path string, h *tar.Header) error {
	if err := os.Chown(path, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Chmod(path, uint32(h.Mode&0o7777)); err != nil {
		return err
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok && name == capabilities {
			if err := unix.Setxattr(path, name, []byte(value), 0); err != nil {
				return err
			}
		}
	}
	return os.Chtimes(path, time.Time{}, h.ModTime)
}
