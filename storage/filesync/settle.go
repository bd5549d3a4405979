package filesync

import (
	"errors"
	"io"
	"path"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// writeState writes the directory's state file: the version's, with the times of the
// directory's files, and marks on those that differ. It adds entries of files that should
// have been removed.
func (p *pull) writeState() error {
	ctx, cancel := p.r.detachContext(p.ctx)
	defer cancel()
	after := p.scan
	if len(p.actions)+len(p.removals) > 0 {
		var err error
		if after, err = p.tree.scanFiles(ctx, nil); err != nil {
			return err
		}
	}
	remote, err := p.version.openCursor()
	if err != nil {
		return err
	}
	local, end, err := p.r.openLocalState(ctx, p.fs)
	if err != nil {
		return err
	}
	defer end()
	state, err := p.r.newSpool()
	if err != nil {
		return err
	}
	defer state.Close()
	s := &settler{pull: p, after: after, head: local.head, parents: map[string]bool{}}
	for at := range p.marks {
		for dir := path.Dir(at); dir != "." && !s.parents[dir]; dir = path.Dir(dir) {
			s.parents[dir] = true
		}
	}
	push := pushOf(p.number, &p.version.head)
	s.out = newStateWriter(state, after.newLocalHead(push))
	for ; remote.file != nil; remote.readNext() {
		l := local.takeEntry(remote.file.Path, s.keepEntry)
		e := s.settleEntry(remote.file, l)
		_ = s.out.writeEntry(&e) // finishState returns the error
	}
	local.skipRest(s.keepEntry)
	if err := errors.Join(remote.err, s.out.finishState()); err != nil {
		return err
	}
	if _, err := state.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return p.r.writeLocal(ctx, p.fs, state, push)
}

// A settler makes the entries of the state file after a pull.
type settler struct {
	*pull
	after   *scan // the directory after the pull
	head    State // of the state file before
	parents map[string]bool
	out     *stateWriter
}

// settleEntry returns the entry of a file of the version. l is its entry before, or nil.
func (s *settler) settleEntry(f, l *File) File {
	e := *f
	switch s.marks[f.Path] {
	case markFailed:
		return s.failedEntry(f, l)
	case markConflict:
		e.mark = markConflict
		fallthrough
	case "":
		if e.mark == "" && s.actions[f.Path] != keepFile {
			break
		}
		e.clearTimes() // those of no file: it was changed in the directory
		if l != nil {
			e.here = l.here
		}
		return e
	}
	if s.actions[f.Path] == writeFile {
		if fi := s.after.findPath(f.Path); fi != nil && s.isWritten(f, fi) {
			s.describeFile(&e, fi)
			if e.here != 0 {
				s.stats.Dropped.addPath(f.Path)
			}
		}
	} else if fi := s.scan.findPath(f.Path); fi != nil {
		s.describeFile(&e, fi)
		if was, ok := s.read[f.Path]; ok && was.Modified != e.Modified || s.after != s.scan && s.changedLately(fi) {
			e.clearTimes()
		}
	}
	return e
}

// describeFile sets what the entry tells about the directory's file.
func (s *settler) describeFile(e *File, fi *atoll.FileInfo) {
	e.setTimes(fi)
	if !s.after.noMode && e.lacksBits(fi.Mode) {
		e.here = fi.Mode
	}
}

// isWritten reports whether the directory's file is the one that the pull has written.
func (s *settler) isWritten(f *File, fi *atoll.FileInfo) bool {
	switch {
	case fi.Type != f.fileType() || fi.Target != f.Target:
		return false
	case !s.after.noMode && !f.sameMode(fi.Mode) && fi.Mode != f.writeMode() && !f.lacksBits(fi.Mode):
		return false
	case !f.isRegular():
		return true
	}
	return fi.Size == f.Size && sameTime(f.modTime(), fi.Modified)
}

// sameTime reports whether a file system stores the time want as is.
func sameTime(want, is time.Time) bool {
	if want.Unix() == 0 {
		return true // archives have no such time
	}
	for _, unit := range []time.Duration{1, 100, time.Microsecond, time.Millisecond, time.Second, 2 * time.Second} {
		if want.Truncate(unit).Equal(is) {
			return true
		}
	}
	return false
}

// changedLately reports whether a file may have changed again after the scan without
// another time.
func (s *settler) changedLately(fi *atoll.FileInfo) bool {
	last := fi.Changed
	if last.IsZero() {
		last = fi.Modified
	}
	head := s.scan.newHead("")
	return isRacy(last, int64(last.Nanosecond()), &head)
}

// failedEntry returns the entry of a file of the version that could not be written.
func (s *settler) failedEntry(f, l *File) File {
	e := *f
	switch {
	case l != nil && l.mark != markMissing && l.mark != markConflict:
		return s.baseEntry(l, markFailed)
	case l == nil && s.scan.findPath(f.Path) != nil, l != nil && l.mark == markConflict:
		e.mark = markConflict
	default:
		e.mark = markMissing
	}
	e.clearTimes()
	return e
}

// baseEntry returns the entry l of the state file before, with a mark.
func (s *settler) baseEntry(l *File, m mark) File {
	e := *l
	e.mark = m
	fi := s.scan.findPath(l.Path)
	if fi == nil || !l.seemsUnchanged(fi, &s.head) {
		e.clearTimes()
	}
	return e
}

// keepEntry writes the entry of a file that is not in the version, if it should have been
// removed: the next pull tries again.
func (s *settler) keepEntry(l *File) {
	if l.mark == markMissing {
		return
	}
	m := markLeft
	switch s.marks[l.Path] {
	case markConflict:
		m = markGone
	case markFailed:
	default:
		if l.fileType() != atoll.TypeDirectory || !s.parents[l.Path] {
			return
		}
	}
	e := s.baseEntry(l, m)
	_ = s.out.writeEntry(&e) // finishState returns the error
}
