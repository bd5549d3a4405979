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

// build unpacks c in the new directory temp, and moves that to its place as a
// whole.
func (s *Store) build(ctx context.Context, c *contents, temp string, m *meter) error {
	root := filepath.Join(temp, rootName)
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	size, err := s.unpack(ctx, c, root, m)
	if err != nil {
		if noSpace(err) {
			need := max(m.toUnpack.Load(), size)
			return &shortage{need: need, err: err}
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
	err = flush(f)
	f.Close()
	if err != nil {
		return err
	}
	return s.install(temp, s.path(rootsDir, file(c.digest)))
}

// install moves the image in temp to its place. What is there is an image whose
// record is damaged: it goes, or gets the new record only, as long as it is held.
func (s *Store) install(temp, place string) error {
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

// describeTo writes down what is known of the image unpacked in dir.
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

// unpack unpacks the layers of c, each as soon as it is at hand, while later
// ones are still being fetched. It returns the bytes of the files.
func (s *Store) unpack(ctx context.Context, c *contents, root string, m *meter) (int64, error) {
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
	return t.bytes, t.finish(ctx)
}

// unpackLayer adds one layer to t. It returns the length of its tar stream,
// which it checks against the layer's digest: the content is not to be trusted
// before that, and nobody sees it.
func (s *Store) unpackLayer(ctx context.Context, t *tree, l layer, limit int64, m *meter) (int64, error) {
	r, err := l.open(ctx)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	plain, err := decompress(countingReader{ctx, r, &m.unpacked})
	if err != nil {
		return 0, damaged(err, "cannot be decompressed")
	}
	defer plain.Close()
	sum, err := v1.Hasher(l.diffID.Algorithm)
	if err != nil {
		return 0, damaged(err, "digest %q", l.diffID)
	}
	ahead := readAhead(ctx, plain, sum, limit)
	defer ahead.close()
	if err := t.layer(ctx, ahead); err != nil {
		return 0, ahead.cause(err)
	}
	if _, err := io.Copy(io.Discard, ahead); err != nil { // what pads a tar stream belongs to it
		return 0, ahead.cause(damaged(err, "cannot be decompressed"))
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != l.diffID.Hex {
		return 0, damaged(nil, "holds a tar stream with digest %s:%s instead of %s", l.diffID.Algorithm, got, l.diffID)
	}
	return ahead.n, nil
}

// maxWindow bounds what a zstd stream may want to look back on.
const maxWindow = 128 << 20

// decompress recognises how r is compressed by how it begins, since media
// types are not always right about it.
func decompress(r io.Reader) (io.ReadCloser, error) {
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
