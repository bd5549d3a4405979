package filesync

import (
	"context"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// Files yields the entries of a version, sorted by path; 0 is the latest one, and there
// are none where there is no version. An error is the last pair. Kinds: ErrNotExist (no
// such version), ErrInternal (ErrDamaged).
func (r *Remote) Files(ctx context.Context, version int64) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		v, _, err := r.read(ctx, version)
		if err != nil || v == nil {
			if err != nil {
				yield(File{}, err)
			}
			return
		}
		defer v.close()
		c, err := v.cursor()
		if err != nil {
			yield(File{}, err)
			return
		}
		for ; c.file != nil; c.advance() {
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

// read fetches version n, 0 for the latest one, and returns its number; there is none
// where there is no latest one.
func (r *Remote) read(ctx context.Context, n int64) (*version, int64, error) {
	sum := ""
	if n == 0 {
		l, err := r.readLatest(ctx)
		if err != nil || l.Version == 0 {
			return nil, 0, err
		}
		n, sum = l.Version, l.SHA256
	}
	v, err := r.fetch(ctx, n, sum, nil)
	return v, n, err
}

// Open reads a file of a version, 0 for the latest one. Its bytes are the file's own:
// their checksum was looked at. The caller closes the reader. Kinds: ErrNotExist (no such
// version, no such file, or its bytes are not there), ErrInvalid (it is no file),
// ErrExhausted (it has more than most bytes), ErrInternal (its bytes are not its own).
func (r *Remote) Open(ctx context.Context, version int64, path string, most int64) (io.ReadCloser, File, error) {
	v, n, err := r.read(ctx, version)
	if err != nil {
		return nil, File{}, err
	}
	if v == nil {
		return nil, File{}, r.fail("read", atoll.ErrNotExist, "there is no version")
	}
	defer v.close()
	c, err := v.cursor()
	if err != nil {
		return nil, File{}, err
	}
	f := c.at(path, func(*File) {})
	switch {
	case c.err != nil:
		return nil, File{}, c.err
	case f == nil:
		return nil, File{}, atoll.Errorf("read", path, atoll.ErrNotExist, "there is no such file in %s", r)
	case !f.regular():
		return nil, File{}, atoll.Errorf("read", path, atoll.ErrInvalid, "is a %s", f.kind())
	case f.Size > most:
		return nil, File{}, atoll.Errorf("read", path, atoll.ErrExhausted, "has %d bytes, more than %d", f.Size, most)
	}
	file := *f
	body, err := r.open(ctx, n, &file)
	return body, file, err
}

// open returns the bytes of a file, which are its.
func (r *Remote) open(ctx context.Context, n int64, f *File) (io.ReadCloser, error) {
	if f.Size == 0 {
		return io.NopCloser(strings.NewReader("")), nil
	}
	s, err := r.spool()
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
	body, _, err := r.bucket.Get(ctx, o.key, o.from, f.Size)
	if err != nil {
		return err
	}
	defer body.Close()
	d := newDigest()
	if err := transfer(io.MultiWriter(o.spool, d), body); err != nil {
		return err
	}
	is := *f
	if d.into(&is); !is.sameBytes(f) {
		return atoll.Errorf("read", f.Path, atoll.ErrInternal, "its bytes in the bucket are not its own")
	}
	_, err = o.spool.Seek(0, io.SeekStart)
	return err
}

// keyOf is the key of the object which holds the file's bytes. An entry of another
// program's names none: they lie beside its state file.
func (r *Remote) keyOf(n int64, f *File) string {
	if f.Object != "" {
		return r.objectKey(f.Object)
	}
	return r.prefix + strconv.FormatInt(n, 10) + "/" + f.Path
}
