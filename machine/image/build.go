//go:build linux

package image

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// buildImage unpacks c in the new directory temp, and atomically moves that to its
// place in the store.
func (s *Store) buildImage(ctx context.Context, c *contents, temp string, m *meter) error {
	root := filepath.Join(temp, rootName)
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	size, err := s.unpackLayers(ctx, c, root, m)
	if err != nil {
		if isNoSpace(err) {
			need := max(m.toUnpack.Load(), size)
			return &noSpaceError{need: need, err: err}
		}
		return err
	}
	if err := s.describeTo(temp, c, size); err != nil {
		return err
	}
	f, err := os.Open(temp)
	if err != nil {
		return err
	}
	err = syncFileSystem(f)
	f.Close()
	if err != nil {
		return err
	}
	return s.installImage(temp, s.storePath(rootsDir, digestName(c.digest)))
}

// installImage moves the image in temp to place. An image there has a damaged record:
// installImage replaces it, or only its record while a process holds it.
func (s *Store) installImage(temp, place string) error {
	lock, err := tryLock(filepath.Join(place, lockName), lockExclusive)
	if err == fsutil.ErrLocked {
		s.log.Warn("mend", "dir", place)
		err := os.Rename(filepath.Join(temp, recordName), filepath.Join(place, recordName))
		return errors.Join(err, fsutil.RemoveAll(temp))
	}
	if err == nil {
		defer lock.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	aside, err := s.tempName()
	if err != nil {
		return err
	}
	if err := os.Rename(place, aside); err == nil {
		s.log.Warn("replace", "dir", place)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.Rename(temp, place), fsutil.RemoveAll(aside))
}

// describeTo writes the record of the image that is unpacked in dir, and its lock file.
func (s *Store) describeTo(dir string, c *contents, size int64) error {
	conf := c.config.Config
	rec := record{
		Image: Image{
			Digest: c.digest.String(),
			Env:    conf.Env, Entrypoint: conf.Entrypoint, Cmd: conf.Cmd,
			User: conf.User, Workdir: conf.WorkingDir,
			Ports:    slices.Sorted(maps.Keys(conf.ExposedPorts)),
			Size:     atoll.Bytes(size),
			Unpacked: time.Now(),
		},
		Blobs: c.blobs,
	}
	if p := c.config.Platform(); p != nil {
		rec.Platform = p.String()
	}
	b, err := json.MarshalIndent(rec, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), b, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, lockName), nil, 0o600)
}

// unpackLayers unpacks the layers of c, each as soon as it is fetched, while later
// ones are being fetched. It returns the bytes of the files.
func (s *Store) unpackLayers(ctx context.Context, c *contents, root string, m *meter) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	for _, l := range c.layers {
		m.toUnpack.Add(l.size)
	}
	if c.fetch != nil {
		wait := c.fetch(ctx)
		defer wait()
	}
	defer cancel() // before the wait
	t, err := newTree(root, s.owners, int64(s.opts.Limit), s.log)
	if err != nil {
		return 0, err
	}
	defer t.close()
	left := int64(s.opts.Limit) // of the tar streams
	for _, l := range c.layers {
		used, err := s.unpackLayer(ctx, t, l, left, m)
		if err != nil {
			return t.bytes, fmt.Errorf("layer %s: %w", l.name, err)
		}
		if left >= 0 {
			left -= used
		}
	}
	return t.bytes, t.applyAttributes(ctx)
}

// unpackLayer adds one layer to t. It returns the length of its tar stream, which it
// checks against the layer's digest: until then the content is untrusted, and no
// process sees it.
func (s *Store) unpackLayer(ctx context.Context, t *tree, l layer, limit int64, m *meter) (int64, error) {
	r, err := l.open(ctx)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	plain, err := newDecompressor(countingReader{ctx, r, &m.unpacked})
	if err != nil {
		return 0, newDamageError(err, "cannot be decompressed")
	}
	defer plain.Close()
	sum, err := v1.Hasher(l.diffID.Algorithm)
	if err != nil {
		return 0, newDamageError(err, "digest %q", l.diffID)
	}
	ahead := readAhead(ctx, plain, sum, limit)
	defer ahead.close()
	if err := t.unpackLayer(ctx, ahead); err != nil {
		return 0, ahead.failureCause(err)
	}
	if _, err := io.Copy(io.Discard, ahead); err != nil { // the padding belongs to the tar stream
		return 0, ahead.failureCause(newDamageError(err, "cannot be decompressed"))
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != l.diffID.Hex {
		return 0, newDamageError(nil, "holds a tar stream with digest %s:%s instead of %s", l.diffID.Algorithm, got, l.diffID)
	}
	return ahead.n, nil
}

// maxWindow bounds the window of a zstd stream, in bytes.
const maxWindow = 128 << 20

// newDecompressor detects the compression of r by its first bytes, since media types
// are not always right. It returns an uncompressed stream as it is.
func newDecompressor(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}
