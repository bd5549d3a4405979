package filesync

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Status says how a directory and the versions are to each other.
type Status struct {
	Latest int64     `json:"latest,omitempty"` // version; 0 if there is none
	Synced time.Time `json:"synced,omitzero"`  // when the directory was pushed or pulled last
	// Behind tells that the directory was last pushed or pulled before the latest
	// version was made.
	Behind bool `json:"behind"`
	// Changes since then. Files whose time alone has changed are read, and are no changes
	// if their content is the same.
	Added   Paths `json:"added"`
	Changed Paths `json:"changed"`
	Removed Paths `json:"removed"`
	// Conflicts are changed files that the version has otherwise, or removed. A pull with
	// KeepRemote replaces them, a push makes them part of the latest version.
	Conflicts Paths `json:"conflicts"`
	// Pending are files of the version that a pull could not write or remove.
	Pending Paths `json:"pending"`
	Unread  Paths `json:"unread"` // directories that cannot be listed
}

// Paths counts paths, and lists the first MaxErrors of them.
type Paths struct {
	Count int      `json:"count"`
	Paths []string `json:"paths,omitempty"`
}

func (p *Paths) addPath(path string) {
	if p.Count++; p.Count <= MaxErrors {
		p.Paths = append(p.Paths, path)
	}
}

// Status compares a directory with its state file, and that with the latest version. It
// changes nothing. Each of ignore is a rule, as in PushOptions.
func (r *Remote) Status(ctx context.Context, t Tree, ignore ...string) (*Status, error) {
	now, err := r.readNewest(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.listFiles(ctx, ignore)
	if err != nil {
		return nil, err
	}
	l, end, err := r.openLocalState(ctx, t.confinedFS())
	if err != nil {
		return nil, err
	}
	defer end()
	st := &Status{Latest: now.newestNumber(), Behind: now.newestNumber() > 0 && l.head.Push != now.newestPush()}
	if l.head.LastSynced > 0 {
		st.Synced = time.Unix(l.head.LastSynced, l.head.SyncedNanos)
	}
	removed := func(f *File) {
		switch {
		case s.isHidden(f.Path) || f.mark.isGone():
		case f.mark == markMissing || f.mark == markFailed:
			st.Pending.addPath(f.Path)
		default:
			st.Removed.addPath(f.Path)
		}
	}
	for i := range s.files {
		fi := &s.files[i]
		path := s.relPath(fi)
		f := l.takeEntry(path, removed)
		if f == nil {
			st.Added.addPath(path)
			continue
		}
		changed, err := f.hasChanged(ctx, t.confinedFS(), fi, &l.head)
		if err != nil {
			return nil, err
		}
		switch {
		case changed && f.mark.isConflict():
			st.Conflicts.addPath(path)
		case f.mark == markMissing:
			st.Added.addPath(path)
		case changed:
			st.Changed.addPath(path)
		case f.mark != "" && fi.Type != atoll.TypeDirectory:
			st.Pending.addPath(path)
		}
	}
	l.skipRest(removed)
	for _, u := range s.unread {
		st.Unread.addPath(u.path)
	}
	return st, nil
}

// hasChanged reports whether a file differs from its entry. It reads the file if its
// metadata cannot tell.
func (f *File) hasChanged(ctx context.Context, fs atoll.FS, fi *atoll.FileInfo, head *State) (bool, error) {
	if f.seemsUnchanged(fi, head) {
		return false, nil
	}
	is := fileOf(fi, f.Path)
	if f.isRegular() && is.isRegular() && f.Size == is.Size {
		var err error
		is, err = readEntry(ctx, fs, fi, f.Path)
		switch kind := atoll.KindOf(err); {
		case err == nil:
		case ctx.Err() != nil || kind == atoll.ErrStopped || kind == atoll.ErrNotFound || kind == atoll.ErrUnavailable:
			return false, err
		default: // it cannot be the file of the entry
			return true, nil
		}
	}
	f.restoreMode(&is, head.NoModes)
	return !is.sameEntry(f), nil
}
