package bundle

import (
	"archive/tar"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"

	"github.com/klauspost/compress/gzip"
)

// packArchive is the packer of a tar.gz without an end marker: more files can follow.
func packArchive(ctx context.Context, path string, fill func(ctx context.Context, to diskWriter) error) error {
	return withArchive(path, os.O_CREATE|os.O_EXCL, func(w *tar.Writer) error {
		if err := fill(ctx, diskWriter{w}); err != nil {
			return err
		}
		return w.Flush()
	})
}

// endArchive adds the guest's program and the end marker to a file of packArchive.
func endArchive(path string, guest []byte) error {
	return withArchive(path, os.O_APPEND, func(w *tar.Writer) error {
		program := &tar.Header{Typeflag: tar.TypeReg, Name: "." + GuestPath, Mode: 0o755, Format: tar.FormatPAX}
		if err := (diskWriter{w}).addFile(program, guest); err != nil {
			return err
		}
		return w.Close()
	})
}

// withArchive calls fill with a writer to a new gzip member at the end of a file:
// decompressors read all members of a file as one stream.
func withArchive(path string, flag int, fill func(w *tar.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|flag, 0o644)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	err = fill(tar.NewWriter(z))
	return errors.Join(err, z.Close(), f.Close())
}

// buildArchive makes the bundle of r, a root archive.
func (s *Store) buildArchive(ctx context.Context, r Recipe, guest []byte, m *meter) (*Bundle, error) {
	m.step, m.steps = 1, 2
	root, release, err := s.debianPart(ctx, debianArchive, FormatArchive, r, m, packArchive)
	if err != nil {
		return nil, err
	}
	defer release()
	m.step = 2
	return s.packBundle(r, m, func(dir string) (*Manifest, error) {
		d := *root.Disk
		path := filepath.Join(dir, d.Name)
		if _, err := copyFile(ctx, path, filepath.Join(root.dir, d.Name)); err != nil {
			return nil, err
		}
		if err := endArchive(path, guest); err != nil {
			return nil, err
		}
		d.Guest = digestOf(guest)
		d.File, err = describeFile(dir, d.Name)
		return &Manifest{Version: ManifestVersion, Arch: runtime.GOARCH, Disks: []Disk{d}, Init: dockerInit}, err
	})
}
