package filesync

import (
	"context"
	"time"
)

// A Status says how a directory and the versions are to each other.
type Status struct {
	Latest int64     `json:"latest,omitempty"` // version; 0 if there is none
	Synced time.Time `json:"synced,omitzero"`  // when the directory was pushed or pulled last
	// Behind says that the directory was last pushed or pulled before the latest
	// version was made.
	Behind bool `json:"behind"`
	// What has changed here since then, as far as can be told without reading files.
	Added   Paths `json:"added"`
	Changed Paths `json:"changed"`
	Removed Paths `json:"removed"`
	Unread  Paths `json:"unread"` // directories that cannot be listed
}

// Paths are some paths: all of them, or the first MaxErrors.
type Paths struct {
	Count int      `json:"count"`
	Paths []string `json:"paths,omitempty"`
}

func (p *Paths) add(path string) {
	if p.Count++; p.Count <= MaxErrors {
		p.Paths = append(p.Paths, path)
	}
}

// Status compares a directory with its state file, and that with the latest version.
// It changes nothing. Each of ignore is a rule, as in PushOptions.
func (r *Remote) Status(ctx context.Context, t Tree, ignore ...string) (*Status, error) {
	now, err := r.readLatest(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.look(ctx, ignore)
	if err != nil {
		return nil, err
	}
	l, end, err := r.local(ctx, t.confined())
	if err != nil {
		return nil, err
	}
	defer end()
	st := &Status{Latest: now.Version, Behind: now.Version > 0 && l.head.Push != now.Push}
	if l.head.LastSynced > 0 {
		st.Synced = time.Unix(l.head.LastSynced, l.head.SyncedNanos)
	}
	removed := func(f *File) {
		if !s.hidden(f.Path) {
			st.Removed.add(f.Path)
		}
	}
	for i := range s.files {
		fi := &s.files[i]
		path := s.path(fi)
		f := l.at(path, removed)
		switch {
		case f == nil:
			st.Added.add(path)
		case !f.looks(fi):
			st.Changed.add(path)
		}
	}
	l.rest(removed)
	for _, u := range s.unread {
		st.Unread.add(u.path)
	}
	return st, nil
}
