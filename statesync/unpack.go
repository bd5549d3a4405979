package statesync

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// unpack writes what is to be written, as one tar stream.
func (p *pull) unpack() error {
	if len(p.verdicts) == 0 {
		return nil
	}
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
		if p.verdicts[f.Path] != write {
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
		if p.done.Files++; p.opts.Progress != nil {
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
		return w.WriteHeader(h)
	case atoll.TypeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
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
	p.stats.FilesDownloaded++
	p.stats.BytesTransferred += f.Size
	p.done.Bytes += f.Size
	return nil
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
