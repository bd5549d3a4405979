package filesync

import (
	"context"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// Files yields the entries of a version, sorted by path; 0 means the latest, and it
// yields none if there is no version. An error is the last pair. Kinds: ErrNotExist (no
// such version), ErrInternal (ErrDamaged).
func (r *Remote) Files(ctx context.Context, version int64) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		v, _, err := r.openVersion(ctx, version)
		if err != nil || v == nil {
			if err != nil {
				yield(File{}, err)
			}
			return
		}
		defer v.closeSpool()
		c, err := v.openCursor()
		if err != nil {
			yield(File{}, err)
			return
		}
		for ; c.file != nil; c.readNext() {
			if err := ctx.Err(); err != nil {
				yield(File{}, err)
				return
			}
			if !yield(*c.file, nil) {
				return
			}
		}
		if c.err != nil {
			yield(File{}, c.err)
		}
	}
}

// openVersion fetches version n, 0 for the latest, and returns its number; nil if there
// is no latest version.
func (r *Remote) openVersion(ctx context.Context, n int64) (*version, int64, error) {
	sum := ""
	if n == 0 {
		l, err := r.readNewest(ctx)
		if err != nil || l.newestNumber() == 0 {
			return nil, 0, err
		}
		n, sum = l.newestNumber(), l.newestSum()
	}
	v, err := r.fetchState(ctx, n, sum, nil)
	return v, n, err
}

// Open reads a file of a version, 0 for the latest, after verifying its checksum. The
// caller closes the reader. Kinds: ErrNotExist (no such version or file, or its content
// is missing), ErrInvalid (not a regular file), ErrExhausted (more than most bytes),
// ErrInternal (its content is damaged).
func (r *Remote) Open(ctx context.Context, version int64, path string, most int64) (io.ReadCloser, File, error) {
	v, n, err := r.openVersion(ctx, version)
	if err != nil {
		return nil, File{}, err
	}
	if v == nil {
		return nil, File{}, r.newError("read", atoll.ErrNotExist, "no version has been pushed")
	}
	defer v.closeSpool()
	c, err := v.openCursor()
	if err != nil {
		return nil, File{}, err
	}
	f := c.takeEntry(path, func(*File) {})
	switch {
	case c.err != nil:
		return nil, File{}, c.err
	case f == nil:
		return nil, File{}, atoll.Errorf("read", path, atoll.ErrNotExist, "no such file in %s", r)
	case !f.isRegular():
		return nil, File{}, atoll.Errorf("read", path, atoll.ErrInvalid, "is a %s, not a file", f.fileType())
	case f.Size > most:
		return nil, File{}, atoll.Errorf("read", path, atoll.ErrExhausted, "has %d bytes, more than the limit of %d", f.Size, most)
	}
	file := *f
	body, err := r.openFile(ctx, n, &file)
	return body, file, err
}

// openFile returns the verified bytes of a file.
func (r *Remote) openFile(ctx context.Context, n int64, f *File) (io.ReadCloser, error) {
	if f.Size == 0 {
		return io.NopCloser(strings.NewReader("")), nil
	}
	s, err := r.newSpool()
	if err != nil {
		return nil, err
	}
	o := &object{key: r.keyOf(n, f), from: f.Offset, to: f.Offset + f.Size, spool: s}
	if err := r.fillSpool(ctx, o, f); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (r *Remote) fillSpool(ctx context.Context, o *object, f *File) error {
	body, err := r.openObject(ctx, o.key, o.from, f.Size)
	if err != nil {
		return err
	}
	defer body.Close()
	d := newDigest()
	if err := copyBytes(io.MultiWriter(o.spool, d), body); err != nil {
		return err
	}
	is := *f
	if d.fillFile(&is); !is.sameBytes(f) {
		return atoll.Errorf("read", f.Path, atoll.ErrInternal, "content in the bucket is damaged")
	}
	_, err = o.spool.Seek(0, io.SeekStart)
	return err
}

// keyOf returns the key of the object with the file's bytes. Entries of other programs
// name no object: their bytes are beside the state file.
func (r *Remote) keyOf(n int64, f *File) string {
	if f.Object != "" {
		return r.objectKey(f.Object)
	}
	return r.prefix + strconv.FormatInt(n, 10) + "/" + f.Path
}
