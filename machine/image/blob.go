//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A localError is one of this machine's, in the middle of a download.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// blob returns an open file with the content that d describes, from the store
// if it is there and undamaged, else fetched. It adds its size to m's fetched
// as it gets on.
func (reg *registry) blob(ctx context.Context, d v1.Descriptor, m *meter) (*os.File, error) {
	s := reg.store
	unlock, err := s.lock(ctx, "blob-"+file(d.Digest))
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := s.path(blobsDir, file(d.Digest))
	f, err := openBlob(path, d)
	if err == nil {
		m.fetched.Add(d.Size)
		return f, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("fetch again", "blob", d.Digest.String(), "err", err)
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	err = reg.retry(ctx, d.Digest.String(), func(p *remote.Puller) error {
		r, err := reg.open(ctx, p, d.Digest)
		if err != nil {
			return err
		}
		defer r.Close()
		f, err = s.download(r, d, path, m)
		return err
	})
	if noSpace(err) {
		return nil, &shortage{need: m.toFetch.Load(), err: err}
	}
	return f, err
}

// openBlob opens a blob that was fetched earlier, after a look at all of it.
func openBlob(path string, d v1.Descriptor) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := verify(f, d); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func verify(f *os.File, d v1.Descriptor) error {
	hash, err := v1.Hasher(d.Digest.Algorithm)
	if err != nil {
		return err
	}
	n, err := io.Copy(hash, f)
	if err != nil {
		return err
	}
	if err := check(hash, n, d); err != nil {
		return err
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// download stores what r gives at path, if it is what d describes: path either
// holds all of it, written to disk, or is not there.
func (s *Store) download(r io.Reader, d v1.Descriptor, path string, m *meter) (*os.File, error) {
	temp, err := s.tempName()
	if err != nil {
		return nil, &localError{err}
	}
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, &localError{err}
	}
	n, err := receive(f, r, d, m)
	if err == nil {
		err = keep(f, temp, path)
	}
	if err != nil {
		m.fetched.Add(-n)
		f.Close()
		os.Remove(temp)
		return nil, err
	}
	return f, nil
}

// receive writes r to f and checks it against d. It returns how much of it it
// has counted as fetched.
func receive(f *os.File, r io.Reader, d v1.Descriptor, m *meter) (int64, error) {
	hash, err := v1.Hasher(d.Digest.Algorithm)
	if err != nil {
		return 0, damaged(err, "digest %s", d.Digest)
	}
	buf := make([]byte, 128<<10)
	var n int64
	for {
		k, err := r.Read(buf)
		if n+int64(k) > d.Size {
			return n, damaged(nil, "blob %s is longer than %d bytes", d.Digest, d.Size)
		}
		hash.Write(buf[:k])
		if _, err := f.Write(buf[:k]); err != nil {
			return n, &localError{err}
		}
		n += int64(k)
		m.fetched.Add(int64(k))
		if err == io.EOF {
			break
		}
		if err != nil && n < d.Size && transient(err) {
			return n, err
		}
		if err != nil {
			return n, damaged(err, "blob %s came with %d of %d bytes", d.Digest, n, d.Size)
		}
	}
	return n, check(hash, n, d)
}

// check compares what was read with what d describes.
func check(hash hash.Hash, n int64, d v1.Descriptor) error {
	if n != d.Size {
		return damaged(nil, "blob %s has %d bytes instead of %d", d.Digest, n, d.Size)
	}
	if got := fmt.Sprintf("%x", hash.Sum(nil)); got != d.Digest.Hex {
		return damaged(nil, "blob %s has digest %s", d.Digest, got)
	}
	return nil
}

// keep moves the finished file temp to path. Its name need not be safe on
// disk: a blob that is lost in a crash is fetched again.
func keep(f *os.File, temp, path string) error {
	if err := f.Sync(); err != nil {
		return &localError{err}
	}
	if err := os.Rename(temp, path); err != nil {
		return &localError{err}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return &localError{err}
	}
	return nil
}
