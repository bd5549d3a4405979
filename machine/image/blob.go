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

// A localError is a failure of this machine, not of the registry, during a download.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// getBlob returns an open file with the blob that d describes, from the store if it
// is there and undamaged, else from the registry. It adds the blob's size to m.fetched
// as it proceeds.
func (reg *registry) getBlob(ctx context.Context, d v1.Descriptor, m *meter) (*os.File, error) {
	s := reg.store
	unlock, err := s.acquireLock(ctx, "blob-"+digestName(d.Digest))
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := s.storePath(blobsDir, digestName(d.Digest))
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
	err = reg.withRetry(ctx, d.Digest.String(), func(p *remote.Puller) error {
		r, err := reg.openBlob(ctx, p, d.Digest)
		if err != nil {
			return err
		}
		defer r.Close()
		f, err = s.downloadBlob(r, d, path, m)
		return err
	})
	if isNoSpace(err) {
		return nil, &noSpaceError{need: m.toFetch.Load(), err: err}
	}
	return f, err
}

// openBlob opens a blob that was fetched earlier, and verifies its content.
func openBlob(path string, d v1.Descriptor) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := verifyBlob(f, d); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func verifyBlob(f *os.File, d v1.Descriptor) error {
	hash, err := v1.Hasher(d.Digest.Algorithm)
	if err != nil {
		return err
	}
	n, err := io.Copy(hash, f)
	if err != nil {
		return err
	}
	if err := checkBlob(hash, n, d); err != nil {
		return err
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// downloadBlob stores the content of r at path if it matches d, and returns the open
// file. path then holds all of it, written to disk; after an error it does not exist.
func (s *Store) downloadBlob(r io.Reader, d v1.Descriptor, path string, m *meter) (*os.File, error) {
	temp, err := s.tempName()
	if err != nil {
		return nil, &localError{err}
	}
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, &localError{err}
	}
	n, err := receiveBlob(f, r, d, m)
	if err == nil {
		err = installBlob(f, temp, path)
	}
	if err != nil {
		m.fetched.Add(-n)
		f.Close()
		os.Remove(temp)
		return nil, err
	}
	return f, nil
}

// receiveBlob writes r to f and checks it against d. It returns the number of bytes
// that it has added to m.fetched.
func receiveBlob(f *os.File, r io.Reader, d v1.Descriptor, m *meter) (int64, error) {
	hash, err := v1.Hasher(d.Digest.Algorithm)
	if err != nil {
		return 0, newDamageError(err, "digest %s", d.Digest)
	}
	buf := make([]byte, 128<<10)
	var n int64
	for {
		k, err := r.Read(buf)
		if n+int64(k) > d.Size {
			return n, newDamageError(nil, "blob %s is longer than %d bytes", d.Digest, d.Size)
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
		if err != nil && n < d.Size && isTransient(err) {
			return n, err
		}
		if err != nil {
			return n, newDamageError(err, "blob %s came with %d of %d bytes", d.Digest, n, d.Size)
		}
	}
	return n, checkBlob(hash, n, d)
}

// checkBlob compares the hash and the size of a blob with d.
func checkBlob(hash hash.Hash, n int64, d v1.Descriptor) error {
	if n != d.Size {
		return newDamageError(nil, "blob %s has %d bytes instead of %d", d.Digest, n, d.Size)
	}
	if got := fmt.Sprintf("%x", hash.Sum(nil)); got != d.Digest.Hex {
		return newDamageError(nil, "blob %s has digest %s", d.Digest, got)
	}
	return nil
}

// installBlob moves the finished file temp to path. It does not sync the directory:
// the store fetches a blob again that a crash has lost.
func installBlob(f *os.File, temp, path string) error {
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
