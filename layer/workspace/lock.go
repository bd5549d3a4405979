package workspace

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// tryLock takes the lock of a workspace whose directory is there, or with make, is
// made.
func (s *store) tryLock(at key, make bool) (*fsutil.Lock, error) {
	dir := s.dir(at)
	for {
		if make {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, err
			}
		}
		lock, err := fsutil.TryLock(filepath.Join(dir, lockFile))
		if !make || !errors.Is(err, fs.ErrNotExist) { // it was just removed
			return lock, err
		}
	}
}

// vacant takes the lock of a workspace that is not there, or was never ready.
func (s *store) vacant(ctx context.Context, at key) (*fsutil.Lock, error) {
	taken := atoll.Errorf("add workspace", at.name, atoll.ErrAlreadyExists, "project %s has a workspace of that name", at.project)
	for {
		lock, lockErr := s.tryLock(at, true)
		old, err := s.read(at)
		switch {
		case err == nil && (old.made() || errors.Is(lockErr, fsutil.ErrLocked)):
			lock.Release()
			return nil, taken
		case !errors.Is(lockErr, fsutil.ErrLocked):
			return lock, lockErr
		}
		if err := sleep(ctx, time.Millisecond); err != nil { // who has it is about to write the record
			return nil, err
		}
	}
}

// lockCopy lets one at a time put a tree into the sandbox with that id, and start
// it. The function that it returns gives the lock back.
func (s *store) lockCopy(ctx context.Context, id string) (unlock func(), err error) {
	dir := filepath.Join(s.Dir, ".copies") // no project is called so
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := waitLock(ctx, filepath.Join(dir, id), nil)
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Remove() }, nil // one that stays does no harm
}

// waitLock takes the lock at path when it is free. It calls meanwhile, if that is
// not nil, each time that it is not.
func waitLock(ctx context.Context, path string, meanwhile func()) (*fsutil.Lock, error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		lock, err := fsutil.TryLock(path)
		if !errors.Is(err, fsutil.ErrLocked) {
			return lock, err
		}
		if meanwhile != nil {
			meanwhile()
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// sleep waits for d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
