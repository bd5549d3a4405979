package filesync

import (
	"cmp"
	"context"

	"github.com/seed46cd37a8/atoll"
)

// A mark tells, in the state file of a directory, in what way the directory's file is not
// the version's although the directory is at that version. It remains until the file is
// pushed, or a pull succeeds.
type mark string

const (
	// markConflict: both sides have changed the file. The entry is the version's.
	markConflict mark = "conflict"
	// markGone: the file was changed here, and the version has none. The entry is that of
	// the version before.
	markGone mark = "gone"
	// markFailed: a pull could not write the file. The entry is that of the version before.
	markFailed mark = "failed"
	// markMissing: like markFailed, but there was no file. The entry is the version's.
	markMissing mark = "missing"
	// markLeft: a pull could not remove the file, and the version has none. The entry is
	// that of the version before.
	markLeft mark = "left"
)

// isGone reports whether the version has no such file.
func (m mark) isGone() bool { return m == markGone || m == markLeft }

// isConflict reports whether both sides have changed the file.
func (m mark) isConflict() bool { return m == markConflict || m == markGone }

// setIDBits are the bits of a mode that some file systems do not set: set-user-ID,
// set-group-ID and sticky.
const setIDBits = 0o7000

// lacksBits reports whether a file has the mode that the entry describes, but for some of
// the setIDBits.
func (f *File) lacksBits(mode uint32) bool {
	return f.Mode != unknownMode && f.fileType() != atoll.TypeSymlink && f.Mode != mode && f.Mode|setIDBits == mode|setIDBits && f.Mode&mode == mode
}

// matchesMode reports whether a file's mode is that of the entry, as far as the
// directory's file system can tell.
func (f *File) matchesMode(mode uint32, noModes bool) bool {
	if noModes {
		return true
	}
	if f.here != 0 {
		return f.here == mode
	}
	return f.sameMode(mode)
}

// restoreMode sets the mode of g, an entry of the directory's file, to what that would be
// if its file system kept all modes. f is the file's entry in the local state or in the
// version.
func (f *File) restoreMode(g *File, noModes bool) {
	switch {
	case f.fileType() != g.fileType():
	case noModes:
		g.Mode = f.Mode
	case f.here != 0 && (!f.isRegular() || f.sameBytes(g)):
		g.here = g.Mode
		g.Mode |= f.Mode &^ f.here & setIDBits
		if g.here == g.Mode {
			g.here = 0
		}
	}
}

// addConflict records a conflict.
func (p *pull) addConflict(path string, kept Policy) {
	if kept == KeepLocal {
		p.marks[path] = markConflict
	}
	if len(p.stats.Conflicts) < MaxErrors {
		p.stats.Conflicts = append(p.stats.Conflicts, Conflict{path, kept})
	}
}

// addError records that a path could not be written or removed.
func (p *pull) addError(path string, err error) {
	p.stats.addError(path, err)
	p.marks[path] = markFailed
}

// matchesFile reports whether the directory's file equals the entry; it reads the file
// if needed. l is the file's entry in the local state, or nil.
func (p *pull) matchesFile(fi *atoll.FileInfo, path string, f, l *File) (bool, error) {
	is := fileOf(fi, path)
	if !is.isRegular() || !f.isRegular() {
		p.restoreMode(&is, f, l)
		return is.sameEntry(f), nil
	}
	if is.Size != f.Size {
		return false, nil
	}
	if !p.scan.noMode && (l == nil || l.here == 0) && !is.sameMode(f.Mode) && (l != nil || !f.lacksBits(is.Mode)) {
		return false, nil
	}
	had, ok := p.read[path]
	if !ok {
		var err error
		had, err = readEntry(p.ctx, p.fs, fi, path)
		switch kind := atoll.KindOf(err); {
		case err == nil:
		case p.ctx.Err() != nil || kind == atoll.ErrStopped || kind == atoll.ErrNotFound || kind == atoll.ErrUnavailable:
			return false, err
		default: // it is not the file of the entry
			return false, nil
		}
		if p.read == nil {
			p.read = map[string]File{}
		}
		p.read[path] = had
	}
	p.restoreMode(&had, f, l)
	return had.sameEntry(f), nil
}

// readEntry returns the entry of a regular file with its content.
func readEntry(ctx context.Context, fs atoll.FS, fi *atoll.FileInfo, path string) (File, error) {
	f := fileOf(fi, path)
	body, now, err := fs.Read(ctx, path, 0)
	if err != nil {
		return f, err
	}
	defer body.Close()
	d := newDigest()
	if err := copyBytes(d, body); err != nil {
		return f, err
	}
	d.fillFile(&f)
	if !now.Modified.Equal(fi.Modified) || f.Size != fi.Size {
		f.clearTimes() // it has changed since
	}
	return f, nil
}

// restoreMode sets the mode of the directory's file, is, to what that would be if the
// file system kept all modes. f is the version's entry, l that of the local state or nil.
func (p *pull) restoreMode(is, f, l *File) {
	if l != nil || p.scan.noMode {
		cmp.Or(l, f).restoreMode(is, p.scan.noMode)
	} else if f.lacksBits(is.Mode) {
		is.Mode = f.Mode // this file system may not keep the bits
	}
}

// isBase reports whether the directory's file is still that of the version before, since
// a pull could not write or remove it.
func (s *pendingEntry) isBase() bool {
	return s.local != nil && (s.local.mark == markFailed || s.local.mark == markLeft) && s.file.fileType() != atoll.TypeDirectory && s.local.sameEntry(&s.file)
}

// resolveMark decides about a complete entry whose file may differ from the version for
// other reasons than a change in the directory.
func (p *push) resolveMark(s *pendingEntry) {
	if s.gone || s.own != nil || s.resolved {
		return
	}
	s.resolved = true
	switch {
	case p.scan.noMode && s.before != nil:
		s.before.restoreMode(&s.file, true)
	case p.scan.noMode:
		s.file.Mode = unknownMode
	case s.local != nil:
		s.local.restoreMode(&s.file, false)
	}
	if !s.isBase() {
		return
	}
	own := *s.local
	own.Modified, own.Nanos, own.changed, own.inode = s.file.Modified, s.file.Nanos, s.file.changed, s.file.inode
	if s.own = &own; s.before != nil {
		s.file = *s.before
	} else {
		s.gone = true
	}
}
