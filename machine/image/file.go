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

// unpackFile unpacks a regular file, always into a new one: an existing file may have
// other links.
func (t *tree) unpackFile(ctx context.Context, d *dir, base string, hdr *tar.Header, r io.Reader) error {
	if err := checkOwner(hdr); err != nil {
		return err
	}
	if hdr.Size < 0 || hdr.Size > t.limit-t.bytes { // a sum could overflow
		return errOverLimit
	}
	t.bytes += hdr.Size
	root, err := t.openDir(d)
	if err != nil {
		return err
	}
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := root.OpenFile(base, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err := t.removeEntry(d, base); err != nil {
			return err
		}
		f, err = root.OpenFile(base, flags, 0o600)
	}
	if err != nil {
		return err
	}
	err = t.fillFile(ctx, f, hdr, r)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return root.Chtimes(base, hdr.ModTime, hdr.ModTime)
}

// fillFile sets the content, owner, mode and capabilities of f from hdr, in this
// order: each step resets the attributes of the later ones.
func (t *tree) fillFile(ctx context.Context, f *os.File, hdr *tar.Header, r io.Reader) error {
	if err := t.copyContent(ctx, f, r); err != nil {
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
	caps, ok := hdr.PAXRecords["SCHILY.xattr."+capabilityAttr]
	if !ok || !t.owners {
		return nil
	}
	return t.setCapabilities(f, caps)
}

// copyContent copies r to the new file f. Zeros become holes: a few compressed bytes
// may expand to as many zeros as the limit allows.
func (t *tree) copyContent(ctx context.Context, f *os.File, r io.Reader) error {
	size, written := int64(0), int64(0)
	for {
		n, err := r.Read(t.buf)
		if chunk := t.buf[:n]; !isZero(chunk) {
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
			return newDamageError(err, "its content cannot be read")
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

// isZero reports whether b is all zeros: the first byte is zero, and each one equals
// the one before it.
func isZero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}
