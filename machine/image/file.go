//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
)

// file unpacks a regular file, always a new one: what is there may be linked
// to from elsewhere.
func (t *tree) file(ctx context.Context, d *dir, base string, hdr *tar.Header, r io.Reader) error {
	if err := checkOwner(hdr); err != nil {
		return err
	}
	if hdr.Size < 0 || hdr.Size > t.limit-t.bytes { // no sum, which could overflow
		return errOverLimit
	}
	t.bytes += hdr.Size
	root, err := t.open(d)
	if err != nil {
		return err
	}
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := root.OpenFile(base, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err := t.remove(d, base); err != nil {
			return err
		}
		f, err = root.OpenFile(base, flags, 0o600)
	}
	if err != nil {
		return err
	}
	err = t.fill(ctx, f, hdr, r)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return root.Chtimes(base, hdr.ModTime, hdr.ModTime)
}

// fill gives f the content, owner, mode and capabilities that hdr tells of, in
// this order: each takes away what the next one sets.
func (t *tree) fill(ctx context.Context, f *os.File, hdr *tar.Header, r io.Reader) error {
	if err := t.copy(ctx, f, r); err != nil {
		return err
	}
	if t.owners {
		if err := f.Chown(hdr.Uid, hdr.Gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(modeOf(hdr)); err != nil {
		return err
	}
	caps, ok := hdr.PAXRecords["SCHILY.xattr."+capabilities]
	if !ok || !t.owners {
		return nil
	}
	return t.setCapabilities(f, caps)
}

// copy writes what r gives to the new file f. Zeros become holes: an entry of a
// few bytes may stand for as many of them as the limit allows.
func (t *tree) copy(ctx context.Context, f *os.File, r io.Reader) error {
	size, written := int64(0), int64(0)
	for {
		n, err := r.Read(t.buf)
		if chunk := t.buf[:n]; !blank(chunk) {
			if _, err := f.WriteAt(chunk, size); err != nil {
				return err
			}
			written = size + int64(n)
		}
		size += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return damaged(err, "its content cannot be read")
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if size == written {
		return nil
	}
	return f.Truncate(size)
}

// blank reports whether b is all zeros: the first byte is, and each is as the
// one before it.
func blank(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}
