package dirfs

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/tarstream"
)

// ReadTar implements atoll.FS. It ignores owners in the stream, and makes holes where a file
// in the stream has them. Devices, pipes and
// entries that lead out of the directory fail with ErrInvalid.
func (f *FS) ReadTar(ctx context.Context, name string, r io.Reader) error {
	at, err := f.resolveForChange(ctx, "write", name)
	if err != nil {
		return err
	}
	var dir tree
	err = f.inTree(at.rel, true, func(rel string) (err error) {
		if err = f.newCreator(f.tree).mkdirAll(rel, 0o755); err == nil {
			dir, err = f.tree.OpenRoot(rel)
		}
		return err
	})
	if err != nil {
		return wrapError("write", name, err)
	}
	defer dir.Close()
	u := unpacker{f: f, name: name, dir: dir, m: f.newCreator(dir), rel: at.rel, left: maxLive}
	err = u.unpackStream(ctx, tarstream.NewReader(ctxReader{ctx, r}))
	if ferr := u.finishDirs(); err == nil {
		err = ferr
	}
	u.announceDirs(ctx)
	return wrapError("write", name, err)
}

type unpacker struct {
	f    *FS
	name string // of the directory, for errors
	dir  tree   // nothing leads out of it
	m    creator
	dirs []dirEntry
	rel  string // of the directory
	left int    // for how many more entries the live tree makes events; -1 if it cannot
}

// maxLive is the number of entries of a tar stream for which a live tree makes events at once.
// With more, unpacking would take much longer; then the first directories get one each at the end.
const maxLive = 200

// liveDir returns the directory at rel as running programs see it, for the first entries.
func (u *unpacker) liveDir(ctx context.Context, rel string) liveDir {
	if u.left <= 0 {
		return liveDir{}
	}
	u.left--
	return u.f.liveDir(ctx, path.Join(u.rel, rel))
}

// announceDirs makes events for directories of a long stream.
func (u *unpacker) announceDirs(ctx context.Context) {
	if u.left != 0 {
		return
	}
	for _, d := range u.dirs[:min(len(u.dirs), maxLive)] {
		if !u.f.liveDir(ctx, u.rel).announce(d.name) {
			return
		}
	}
}

// announceEntry makes an event for an entry, one of the first. If the inside does not answer, the unpacker makes no more:
// each would wait as long.
func (u *unpacker) announceEntry(ctx context.Context, name string) {
	if !u.liveDir(ctx, ".").announce(name) {
		u.left = -1
	}
}

// A dirEntry has the mode and time that a directory gets at the end: before, the mode
// might prevent writes, and writes would change the time.
type dirEntry struct {
	name string
	mode fs.FileMode
	time time.Time
}

func (u *unpacker) unpackStream(ctx context.Context, r *tarstream.Reader) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = u.unpackEntry(ctx, h, r)
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
			return atoll.Errorf("write", u.name, atoll.ErrInvalid, "incomplete or damaged tar stream: %w", err)
		}
		if err != nil {
			return err
		}
	}
}

// unpackEntry unpacks one entry, which may be hostile.
func (u *unpacker) unpackEntry(ctx context.Context, h *tarstream.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := entryName(h.Name)
	if err == nil {
		err = u.placeEntry(ctx, name, h, r)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if isEscape(err) {
		return atoll.Errorf("write", h.Name, atoll.ErrInvalid, "the entry %w of the archive", ErrEscapes)
	}
	return wrapError("write", h.Name, err)
}

// entryName returns the cleaned name of an entry, or ErrEscapes if it leads out of the
// archive.
func entryName(name string) (string, error) {
	clean := path.Clean(name)
	if name == "" || path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") {
		return "", ErrEscapes
	}
	return clean, nil
}

func (u *unpacker) placeEntry(ctx context.Context, name string, h *tarstream.Header, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return u.placeDir(ctx, name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.placeFile(ctx, name, h, r)
	case tar.TypeSymlink:
		return u.placeLink(ctx, name, func() error {
			if err := u.dir.Symlink(h.Linkname, name); err != nil {
				return err
			}
			return u.m.setOwner(name)
		})
	case tar.TypeLink:
		target, err := entryName(h.Linkname)
		if err != nil {
			return err
		}
		return u.placeLink(ctx, name, func() error { return u.dir.Link(target, name) })
	}
	return &invalidError{"neither a file, a directory nor a link"}
}

func (u *unpacker) placeDir(ctx context.Context, name string, h *tarstream.Header) error {
	info, err := u.dir.Lstat(name)
	if err == nil && !info.IsDir() {
		if err := u.removeEntry(name); err != nil {
			return err
		}
	}
	if err != nil {
		defer func() { u.announceEntry(ctx, name) }()
	}
	if err := u.m.mkdirAll(name, 0o755); err != nil {
		return err
	}
	u.dirs = append(u.dirs, dirEntry{name, u.f.fileMode(uint32(h.Mode)), h.ModTime})
	return nil
}

// placeFile replaces a file atomically, as Write does: a killed process leaves the old
// file.
func (u *unpacker) placeFile(ctx context.Context, name string, h *tarstream.Header, r io.Reader) error {
	dir, err := u.m.openRoot(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	w := pendingWrite{dir: dir, target: path.Base(name), temp: atoll.TempName(), uid: u.m.uid, gid: u.m.gid, mode: u.f.fileMode(uint32(h.Mode))}
	switch info, err := dir.Lstat(w.target); {
	case errors.Is(err, fs.ErrNotExist):
		w.absent = true
	case err != nil:
		return err
	case info.IsDir():
		if err := u.removeEntry(name); err != nil {
			return err
		}
	}
	w.live = u.liveDir(ctx, path.Dir(name))
	if err := u.f.createFile(&w); err != nil {
		return err
	}
	content := func(file *os.File, buffer []byte) error { return h.WriteFile(file, ctxReader{ctx, r}, buffer) }
	if _, err := w.writeAll(content); err != nil {
		return err
	}
	if w.silent { // each of the others would wait as long
		u.left = -1
	}
	return u.setTime(name, h.ModTime)
}

// placeLink creates a link, and its missing parents.
func (u *unpacker) placeLink(ctx context.Context, name string, link func() error) error {
	if err := u.removeEntry(name); err != nil {
		return err
	}
	err := link()
	if errors.Is(err, fs.ErrNotExist) {
		if err := u.m.mkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		err = link()
	}
	if err == nil {
		u.announceEntry(ctx, name)
	}
	return err
}

// removeEntry removes the file that an entry replaces, never the target of a link.
func (u *unpacker) removeEntry(name string) error {
	err := u.dir.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (u *unpacker) setTime(name string, t time.Time) error {
	if t.IsZero() || t.Unix() == 0 {
		return nil // the archive has no time
	}
	return u.dir.Chtimes(name, t, t)
}

// finishDirs sets modes and times, the deepest first.
func (u *unpacker) finishDirs() error {
	for _, d := range slices.Backward(u.dirs) {
		err := u.dir.Chmod(d.name, d.mode)
		if err == nil {
			err = u.setTime(d.name, d.time)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // replaced by a later entry
			return err
		}
	}
	return nil
}
