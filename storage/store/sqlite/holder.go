package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Each program that holds records locks a file of its own. The kernel releases the lock however the program ends.

func (s *Store) holderPath(name string) string { return filepath.Join(s.path+".holders", name) }

// Holder implements Holders.
func (s *Store) Holder(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", atoll.Errorf("open", s.path, atoll.ErrUnavailable, "the store is closed")
	}
	if s.holder != nil {
		return s.holderName, nil
	}
	name := atoll.NewID()
	path := s.holderPath(name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		s.removeDeadHolders(filepath.Dir(path))
		s.holder, err = fsutil.WaitLock(path) // another program may be checking it
	}
	if err != nil {
		s.holder = nil
		return "", s.wrapError("open", "", err)
	}
	s.holderName = name
	return name, nil
}

// removeDeadHolders removes the files of programs that were killed.
func (s *Store) removeDeadHolders(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // leftover files do no harm
	}
	for _, e := range entries {
		if lock, err := fsutil.TryShareExisting(filepath.Join(dir, e.Name())); err == nil {
			_ = lock.Remove() // a failure does no harm
		}
	}
}

// IsAlive implements Holders.
func (s *Store) IsAlive(ctx context.Context, holder string) (bool, error) {
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
		return false, s.wrapError("open", "", err)
	}
	_ = lock.Remove() // killed program; if this fails, the next call retries
	return false, nil
}

// isHolder reports whether name can be the name of a holder. It guards the path that name becomes part of.
func isHolder(name string) bool {
	id, err := atoll.NormalizeID(name)
	return err == nil && id != "" && id == name
}
