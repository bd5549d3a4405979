package fakemodal

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"compress/gzip"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/seed46cd37a8/atoll"
)

// A fileSnapshot is the root file system of a sandbox at one time.
type fileSnapshot struct {
	image v1.Image // without a configuration
	work  string   // tar file with the content of atoll.DefaultWorkdir; "" if that was empty
}

// kernelDirs are the directories that the kernel provides, without files of the sandbox.
var kernelDirs = []string{"/proc", "/sys", "/dev"}

// captureFiles returns an image of the root file system of a sandbox, without the content of the
// mounted directories.
func (s *Server) captureFiles(ctx context.Context, inner atoll.Sandbox, mounted []string) (*fileSnapshot, error) {
	id := newID("shot-")
	c := &tarCapture{skip: slices.Concat(kernelDirs, mounted)}
	work := s.filePath("layers", id+".work.tar")
	err := c.createFiles(s.filePath("layers", id+".tar"), work)
	if err == nil {
		err = errors.Join(c.writeAll(ctx, atoll.Files(inner)), c.closeFiles())
	}
	if err != nil {
		return nil, err
	}
	if !c.hasWork {
		work = ""
	}
	layer, err := tarball.LayerFromFile(s.filePath("layers", id+".tar"), tarball.WithCompressionLevel(gzip.NoCompression))
	if err != nil {
		return nil, err
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return nil, err
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, err
	}
	return &fileSnapshot{img, work}, nil
}

// A tarCapture writes a file system to tar files.
type tarCapture struct {
	skip    []string // directories whose content is left out
	files   []*os.File
	root    *tar.Writer
	work    *tar.Writer
	hasWork bool
}

func (c *tarCapture) createFiles(paths ...string) error {
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return errors.Join(err, c.closeFiles())
		}
		c.files = append(c.files, f)
	}
	c.root, c.work = tar.NewWriter(c.files[0]), tar.NewWriter(c.files[1])
	return nil
}

func (c *tarCapture) closeFiles() (err error) {
	for _, w := range []*tar.Writer{c.root, c.work} {
		if w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	for _, f := range c.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// writeAll writes everything, one directory of the root after the other, because a stream of the root
// itself would include the files of the kernel.
func (c *tarCapture) writeAll(ctx context.Context, fs atoll.FS) error {
	list, err := fs.List(ctx, "/", false)
	if err != nil {
		return err
	}
	for _, f := range list {
		name := path.Clean(f.Path)
		switch {
		case f.Type == atoll.TypeSymlink:
			err = c.root.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name[1:], Linkname: f.Target, Mode: 0o777, Uid: f.UID, Gid: f.GID, ModTime: f.Modified})
		case f.Type == atoll.TypeDirectory && slices.Contains(c.skip, name):
			err = c.root.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name[1:] + "/", Mode: int64(f.Mode), Uid: f.UID, Gid: f.GID, ModTime: f.Modified})
		default:
			err = c.writeTree(ctx, fs, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeTree writes name and everything below it.
func (c *tarCapture) writeTree(ctx context.Context, fs atoll.FS, name string) error {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := fs.WriteTar(ctx, name, w)
		w.CloseWithError(err)
		done <- err
	}()
	err := c.copyEntries(tar.NewReader(r), name)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // the padding after the end
	}
	r.CloseWithError(err)
	return errors.Join(err, <-done)
}

// copyEntries copies the entries of a tar stream of name.
func (c *tarCapture) copyEntries(from *tar.Reader, name string) error {
	for {
		h, err := from.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		at := path.Join(name, h.Name)
		if slices.ContainsFunc(c.skip, func(dir string) bool { return strings.HasPrefix(at, dir+"/") }) {
			continue
		}
		inWork := *h
		h.Name = at[1:]
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname = path.Join(name, h.Linkname)[1:]
		}
		to := []*tar.Writer{c.root}
		if name == atoll.DefaultWorkdir {
			to = append(to, c.work)
			c.hasWork = c.hasWork || at != name
		}
		if err := writeEntry(to, []*tar.Header{h, &inWork}, from); err != nil {
			return err
		}
	}
}

// writeEntry writes one entry to each stream, with that stream's header.
func writeEntry(to []*tar.Writer, headers []*tar.Header, data io.Reader) error {
	writers := make([]io.Writer, len(to))
	for i, w := range to {
		if err := w.WriteHeader(headers[i]); err != nil {
			return err
		}
		writers[i] = w
	}
	_, err := io.Copy(io.MultiWriter(writers...), data)
	return err
}

// unpackWork restores the files of the work directory from a tar file.
func unpackWork(ctx context.Context, inner atoll.Sandbox, work string) error {
	f, err := os.Open(work)
	if err != nil {
		return err
	}
	defer f.Close()
	return atoll.Files(inner).ReadTar(ctx, atoll.DefaultWorkdir, f)
}

// hasMount reports whether a spec mounts something at target.
func hasMount(spec *atoll.Spec, target string) bool {
	return slices.ContainsFunc(spec.Mounts, func(m atoll.Mount) bool { return path.Clean(m.Target) == target })
}
