package sqlite

import (
	"context"
	"errors"
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"io/fs"
	"os"
	"path/filepath"
)

// A holder is a file that its program has locked. The kernel releases the lock however the
// program ends.

func (s *Store) holderPath(name string) string { return filepath.Join(s.path+".holders", name) }

// Holder implements Holders.
func (s *Store) Holder(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", atoll.Errorf("open", s.path, atoll.ErrUnavailable, "the store is closed")
	}
	if s.holder != nil {
		return s.name, nil
	}
	name := atoll.NewID()
	path := s.holderPath(name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		s.sweep(filepath.Dir(path))
		s.holder, err = fsutil.WaitLock(path) // somebody may just be looking at it
	}
	if err != nil {
		s.holder = nil
		return "", s.failed("open", "", err)
	}
	s.name = name
	return name, nil
}

// sweep removes the files of holders that were killed.
func (s *Store) sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // what is left does no harm
	}
	for _, e := range entries {
		if lock, err := fsutil.TryShareExisting(filepath.Join(dir, e.Name())); err == nil {
			_ = lock.Remove() // as above
		}
	}
}

// Alive implements Holders.
func (s *Store) Alive(ctx context.Context, holder string) (bool, error) {
	if !isHolder(holder) {
		return false, nil
	}
	lock, err := fsutil.TryShareExisting(s.holderPath(holder))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, fsutil.ErrLocked):
		return true, nil
	case err != nil:
		return false, s.failed("open", "", err)
	}
	_ = lock.Remove() // of one that was killed; the next one will do it, else
	return false, nil
}

// isHolder reports whether name can be that of one: it becomes part of a path.
func isHolder(name string) bool {
	id, err := atoll.NormalizeID(name)
	return err == nil && id != "" && id == name
}
