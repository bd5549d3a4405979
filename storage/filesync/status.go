package filesync

import (
	"context"
	"time"
)

// A Status says how a directory and the versions are to each other.
type Status struct {
	Latest int64     `json:"latest,omitempty"` // version; 0 if there is none
	Synced time.Time `json:"synced,omitzero"`  // when the directory was pushed or pulled last
	// Behind tells that the directory was last pushed or pulled before the latest
	// version was made.
	Behind bool `json:"behind"`
	// Changes since then, as far as metadata can tell.
	Added   Paths `json:"added"`
	Changed Paths `json:"changed"`
	Removed Paths `json:"removed"`
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
	now, err := r.readLatest(ctx)
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
	st := &Status{Latest: now.Version, Behind: now.Version > 0 && l.head.Push != now.Push}
	if l.head.LastSynced > 0 {
		st.Synced = time.Unix(l.head.LastSynced, l.head.SyncedNanos)
	}
	removed := func(f *File) {
		if !s.isHidden(f.Path) {
			st.Removed.addPath(f.Path)
		}
	}
	for i := range s.files {
		fi := &s.files[i]
		path := s.relPath(fi)
		f := l.takeEntry(path, removed)
		switch {
		case f == nil:
			st.Added.addPath(path)
		case !f.matchesInfo(fi):
			st.Changed.addPath(path)
		}
	}
	l.skipRest(removed)
	for _, u := range s.unread {
		st.Unread.addPath(u.path)
	}
	return st, nil
}
