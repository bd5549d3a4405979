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

// unpack writes what is to be written. What the file system refuses is told, and the
// rest written.
func (p *pull) unpack() error {
	if len(p.verdicts) == 0 {
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
		if p.verdicts[at] != write {
			return err // of no file
		}
		dir := path.Dir(at)
		if err := p.refused(at, err, closed[dir]); err != nil {
			return err
		}
		closed[dir] = true
	}
}

// refused has a path and what is below it, and all others in its directory if all is
// said, stay what they are, and has the stream begin anew behind it: nothing of what
// followed has been written.
func (p *pull) refused(at string, why error, all bool) error {
	remote, err := p.version.cursor()
	if err != nil {
		return err
	}
	dir, packed := path.Dir(at), p.packed
	p.objects = map[string]*object{}
	for ; remote.file != nil; remote.advance() {
		f := remote.file
		if f.Path < at || p.verdicts[f.Path] != write {
			continue
		}
		if f.Path <= packed {
			p.sent(f, -1)
		}
		if f.Path == at || strings.HasPrefix(f.Path, at+"/") || all && path.Dir(f.Path) == dir {
			p.stats.problem(f.Path, why)
			p.verdicts[f.Path] = keep
			continue
		}
		p.fetched(f)
	}
	p.after, p.packed = at, at
	return remote.err
}

// unpackRest writes what comes after what has been written, as one tar stream.
func (p *pull) unpackRest() error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	in, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := p.pack(ctx, tar.NewWriter(out))
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
		return p.r.fail("pull", atoll.ErrExhausted, "there is no room for all of version %d: make some and pull again, which goes on from here: %w", p.number, err)
	}
	return err
}

var errUnpacked = errors.New("nobody unpacks any more")

// pack writes the stream.
func (p *pull) pack(ctx context.Context, w *tar.Writer) error {
	remote, err := p.version.cursor()
	if err != nil {
		return err
	}
	l := p.loader(ctx)
	defer l.close()
	for ; remote.file != nil; remote.advance() {
		f := remote.file
		if p.verdicts[f.Path] != write || f.Path <= p.after {
			continue
		}
		if stays, err := p.stays(f.Path, f); err != nil {
			return err
		} else if stays {
			continue
		}
		if err := p.packOne(w, l, f); err != nil {
			return err
		}
		if p.opts.Progress != nil {
			p.opts.Progress(p.done)
		}
	}
	return errors.Join(remote.err, w.Close())
}

func (p *pull) packOne(w *tar.Writer, l *loader, f *File) error {
	h := &tar.Header{Name: f.Path, Mode: int64(f.mode()), ModTime: f.time(), Format: tar.FormatPAX}
	switch f.kind() {
	case atoll.TypeDirectory:
		h.Typeflag, h.Name = tar.TypeDir, f.Path+"/"
		p.sent(f, 1)
		return w.WriteHeader(h)
	case atoll.TypeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
		p.sent(f, 1)
		return w.WriteHeader(h)
	}
	body, done, err := l.open(f)
	if bad, ok := errors.AsType[*badBytes](err); ok {
		p.stats.problem(f.Path, bad)
		p.verdicts[f.Path] = keep
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
	if err := transfer(w, body); err != nil {
		return err
	}
	p.sent(f, 1)
	return nil
}

// sent counts an entry that has gone into the stream, or with -1 one that is to go once
// more.
func (p *pull) sent(f *File, n int) {
	p.packed = f.Path
	p.done.Files += int64(n)
	if f.regular() {
		p.stats.FilesDownloaded += n
		p.stats.BytesTransferred += int64(n) * f.Size
		p.done.Bytes += int64(n) * f.Size
	}
}

// mode is the one that a file is written with.
func (f *File) mode() uint32 {
	switch {
	case f.Mode != unknownMode:
		return f.Mode
	case f.kind() == atoll.TypeDirectory:
		return 0o755
	}
	return 0o644
}

// time is when it was modified.
func (f *File) time() time.Time { return time.Unix(f.Modified, max(f.Nanos, 0)) }

// leaveState writes the state file of the directory: that of the version, but that
// what is otherwise here is known to be.
func (p *pull) leaveState() error {
	remote, err := p.version.cursor()
	if err != nil {
		return err
	}
	state, err := p.r.spool()
	if err != nil {
		return err
	}
	defer state.Close()
	push := p.version.head.Push
	out := newStateWriter(state, State{Push: push, LastSynced: p.scan.at.Unix(), SyncedNanos: int64(p.scan.at.Nanosecond())})
	for ; remote.file != nil; remote.advance() {
		f := *remote.file
		p.date(&f)
		if err := out.put(&f); err != nil {
			return err
		}
	}
	if err := errors.Join(remote.err, out.close()); err != nil {
		return err
	}
	if _, err := state.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return p.r.writeLocal(p.ctx, p.fs, state, push)
}

// date has the entry of the version say when the file that is here was modified: as
// far as it is the version's.
func (p *pull) date(f *File) {
	switch p.verdicts[f.Path] {
	case keep:
		f.Modified, f.Nanos = 0, unknownNanos // no file's: it was changed here
	case leave:
		if is, ok := p.read[f.Path]; ok {
			f.Modified, f.Nanos = is.Modified, is.Nanos
		} else if fi := p.scan.find(f.Path); fi != nil {
			f.Modified, f.Nanos = fi.Modified.Unix(), int64(fi.Modified.Nanosecond())
		}
	}
}
