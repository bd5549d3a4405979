package filesync

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// unpackFiles writes the files to write. It records files that the file system refuses
// as errors, and writes the others.
func (p *pull) unpackFiles() error {
	if len(p.actions) == 0 {
		return nil
	}
	closed := map[string]bool{} // directories in which something was refused
	for {
		err := p.unpackRest()
		e, ok := errors.AsType[*atoll.Error](err)
		if !ok || e.Kind != atoll.ErrDenied || p.ctx.Err() != nil {
			return err
		}
		at := path.Clean(e.ID)
		if p.actions[at] != writeFile {
			return err // not about a file
		}
		dir := path.Dir(at)
		if err := p.skipRefused(at, err, closed[dir]); err != nil {
			return err
		}
		closed[dir] = true
	}
}

// skipRefused keeps a path and everything below it as it is, and all others in its
// directory, too, if all is set. It restarts the stream behind the path, since nothing
// behind it has been written.
func (p *pull) skipRefused(at string, why error, all bool) error {
	remote, err := p.version.openCursor()
	if err != nil {
		return err
	}
	dir, packed := path.Dir(at), p.packed
	p.objects = map[string]*object{}
	for ; remote.file != nil; remote.readNext() {
		f := remote.file
		if f.Path < at || p.actions[f.Path] != writeFile {
			continue
		}
		if f.Path <= packed {
			p.countSent(f, -1)
		}
		if f.Path == at || strings.HasPrefix(f.Path, at+"/") || all && path.Dir(f.Path) == dir {
			p.addError(f.Path, why)
			p.actions[f.Path] = keepFile
			continue
		}
		p.needObject(f)
	}
	p.after, p.packed = at, at
	return remote.err
}

// unpackRest writes the files that are not written yet, as one tar stream.
func (p *pull) unpackRest() error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	in, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := p.packFiles(ctx, tar.NewWriter(out))
		out.CloseWithError(err)
		packed <- err
	}()
	err := p.fs.ReadTar(ctx, ".", in)
	in.CloseWithError(errUnpacked)
	cancel()
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, errUnpacked) && !errors.Is(packErr, context.Canceled) {
		return packErr
	}
	if atoll.KindOf(err) == atoll.ErrExhausted {
		return p.r.newError("pull", atoll.ErrExhausted, "no space for all of version %d: free some and pull again to continue: %w", p.number, err)
	}
	return err
}

var errUnpacked = errors.New("unpacking has ended")

// packFiles writes the tar stream.
func (p *pull) packFiles(ctx context.Context, w *tar.Writer) error {
	remote, err := p.version.openCursor()
	if err != nil {
		return err
	}
	l := p.newLoader(ctx)
	defer l.closeDownloads()
	for ; remote.file != nil; remote.readNext() {
		f := remote.file
		if p.actions[f.Path] != writeFile || f.Path <= p.after {
			continue
		}
		if stays, err := p.keepsLateChange(f.Path, f); err != nil {
			return err
		} else if stays {
			continue
		}
		if err := p.packFile(w, l, f); err != nil {
			return err
		}
		if p.opts.Progress != nil {
			p.opts.Progress(p.done)
		}
	}
	return errors.Join(remote.err, w.Close())
}

func (p *pull) packFile(w *tar.Writer, l *loader, f *File) error {
	h := &tar.Header{Name: f.Path, Mode: int64(f.writeMode()), ModTime: f.modTime(), Format: tar.FormatPAX}
	switch f.fileType() {
	case atoll.TypeDirectory:
		h.Typeflag, h.Name = tar.TypeDir, f.Path+"/"
		p.countSent(f, 1)
		return w.WriteHeader(h)
	case atoll.TypeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
		p.countSent(f, 1)
		return w.WriteHeader(h)
	}
	body, done, err := l.openFile(f)
	if bad, ok := errors.AsType[*contentError](err); ok {
		p.addError(f.Path, bad)
		p.actions[f.Path] = keepFile
		return nil
	}
	if err != nil {
		return err
	}
	defer done()
	h.Typeflag, h.Size = tar.TypeReg, f.Size
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if err := copyBytes(w, body); err != nil {
		return err
	}
	p.countSent(f, 1)
	return nil
}

// countSent counts an entry written to the stream, or with -1 one that the stream has
// to repeat.
func (p *pull) countSent(f *File, n int) {
	p.packed = f.Path
	p.done.Files += int64(n)
	if f.isRegular() {
		p.stats.FilesDownloaded += n
		p.stats.BytesTransferred += int64(n) * f.Size
		p.done.Bytes += int64(n) * f.Size
	}
}

// writeMode returns the mode with which a file is written.
func (f *File) writeMode() uint32 {
	switch {
	case f.Mode != unknownMode:
		return f.Mode
	case f.fileType() == atoll.TypeDirectory:
		return 0o755
	}
	return 0o644
}

// modTime returns the time of the last modification.
func (f *File) modTime() time.Time { return time.Unix(f.Modified, max(f.Nanos, 0)) }
