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

// archive is the packer of a tar in gzip that has no end yet: more can follow.
func archive(ctx context.Context, path string, fill func(ctx context.Context, to tarTo) error) error {
	return withArchive(path, os.O_CREATE|os.O_EXCL, func(w *tar.Writer) error {
		if err := fill(ctx, tarTo{w}); err != nil {
			return err
		}
		return w.Flush()
	})
}

// endArchive adds the guest's program to what archive has made, and the end.
func endArchive(path string, guest []byte) error {
	return withArchive(path, os.O_APPEND, func(w *tar.Writer) error {
		program := &tar.Header{Typeflag: tar.TypeReg, Name: "." + GuestPath, Mode: 0o755, Format: tar.FormatPAX}
		if err := (tarTo{w}).add(program, guest); err != nil {
			return err
		}
		return w.Close()
	})
}

// withArchive calls fill with what writes to a file, of which gzip makes a member of its
// own: those of one file are read as one stream.
func withArchive(path string, flag int, fill func(w *tar.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|flag, 0o644)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	err = fill(tar.NewWriter(z))
	return errors.Join(err, z.Close(), f.Close())
}

// buildArchive makes the bundle of r, which is a root archive.
func (s *Store) buildArchive(ctx context.Context, r Recipe, guest []byte, m *meter) (*Bundle, error) {
	root, release, err := s.debianPart(ctx, debianArchive, FormatArchive, r, m, archive)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.pack(r, m, func(dir string) (*Manifest, error) {
		d := *root.Disk
		path := filepath.Join(dir, d.Name)
		if _, err := copyFile(ctx, path, filepath.Join(root.dir, d.Name)); err != nil {
			return nil, err
		}
		if err := endArchive(path, guest); err != nil {
			return nil, err
		}
		d.Guest = digestOf(guest)
		d.File, err = measure(dir, d.Name)
		return &Manifest{Version: ManifestVersion, Arch: runtime.GOARCH, Disks: []Disk{d}, Init: dockerInit}, err
	})
}
