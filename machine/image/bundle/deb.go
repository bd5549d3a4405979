package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
	"github.com/pierrec/lz4/v4"
)

// A Debian package is an ar archive of three members. The last one is the tar stream with
// the files.
const (
	arMagic  = "!<arch>\n"
	arHeader = 60 // bytes before each member
)

// readDeb calls each for every file of the Debian package at path, in the package's order.
func readDeb(ctx context.Context, path string, each func(hdr *tar.Header, r io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	magic := make([]byte, len(arMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != arMagic {
		return newDamageError(err, "%s is not a Debian package", path)
	}
	for {
		name, size, err := nextMember(r)
		if err == io.EOF {
			return newDamageError(nil, "%s has no data.tar", path)
		}
		if err != nil {
			return newDamageError(err, "%s", path)
		}
		member := io.LimitReader(r, size)
		if strings.HasPrefix(name, "data.tar") {
			return readTar(ctx, member, each)
		}
		if _, err := io.CopyN(io.Discard, r, size+size%2); err != nil { // members begin at even offsets
			return newDamageError(err, "%s ends in the middle of %s", path, name)
		}
	}
}

func nextMember(r io.Reader) (name string, size int64, err error) {
	var hdr [arHeader]byte
	if _, err := io.ReadFull(r, hdr[:]); err != nil {
		return "", 0, err
	}
	size, err = strconv.ParseInt(strings.TrimSpace(string(hdr[48:58])), 10, 64)
	if err != nil || size < 0 || string(hdr[58:]) != "`\n" {
		return "", 0, errors.New("invalid ar header")
	}
	return strings.TrimSuffix(strings.TrimSpace(string(hdr[:16])), "/"), size, nil
}

func readTar(ctx context.Context, r io.Reader, each func(hdr *tar.Header, r io.Reader) error) error {
	plain, err := newDecompressor(r)
	if err != nil {
		return err
	}
	defer plain.Close()
	t := tar.NewReader(plain)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		hdr, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return newDamageError(err, "not a tar stream")
		}
		if err := each(hdr, t); err != nil {
			return fmt.Errorf("%s: %w", hdr.Name, err)
		}
	}
}

// A compression is a format of compressed kernels, modules and packages.
type compression struct {
	magic string
	open  func(r io.Reader) (io.Reader, error)
}

// maxWindow bounds the window of a compressed stream, in bytes.
const maxWindow = 128 << 20

var compressions = []compression{
	{"\x1f\x8b\x08", func(r io.Reader) (io.Reader, error) {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, err
		}
		z.Multistream(false) // a kernel may have trailing data
		return z, nil
	}},
	{"\xfd7zXZ\x00", func(r io.Reader) (io.Reader, error) {
		z, err := xz.NewReader(r, maxWindow)
		if err != nil {
			return nil, err
		}
		z.Multistream(false)
		return z, nil
	}},
	{"\x28\xb5\x2f\xfd", func(r io.Reader) (io.Reader, error) {
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	}},
	{"\x02\x21\x4c\x18", func(r io.Reader) (io.Reader, error) { return lz4.NewReader(r), nil }},
	{"BZh", func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }},
}

// newDecompressor detects the compression of r by its first bytes. It returns an
// uncompressed stream as it is.
func newDecompressor(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	for _, c := range compressions {
		if !bytes.HasPrefix(magic, []byte(c.magic)) {
			continue
		}
		plain, err := c.open(b)
		if err != nil {
			return nil, newDamageError(err, "cannot be decompressed")
		}
		if z, ok := plain.(*zstd.Decoder); ok {
			return z.IOReadCloser(), nil
		}
		return io.NopCloser(plain), nil
	}
	return io.NopCloser(b), nil
}
