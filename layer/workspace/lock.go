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

// tryLock takes the lock of a workspace. With make, it creates the directory if necessary.
func (s *store) tryLock(at workspaceKey, make bool) (*fsutil.Lock, error) {
	dir := s.workspaceDir(at)
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

// lockNew takes the lock of a workspace that does not exist or was never ready.
func (s *store) lockNew(ctx context.Context, at workspaceKey) (*fsutil.Lock, error) {
	taken := atoll.Errorf("add workspace", at.name, atoll.ErrAlreadyExists, "project %s already has this workspace", at.project)
	for {
		lock, lockErr := s.tryLock(at, true)
		old, err := s.readRecord(at)
		switch {
		case err == nil && (old.wasReady() || errors.Is(lockErr, fsutil.ErrLocked)):
			lock.Release()
			return nil, taken
		case !errors.Is(lockErr, fsutil.ErrLocked):
			return lock, lockErr
		}
		if err := sleepContext(ctx, time.Millisecond); err != nil { // the holder is about to write the record
			return nil, err
		}
	}
}

// lockCopy lets one program at a time copy a tree into the sandbox with this id and start it. The
// caller must call unlock.
func (s *store) lockCopy(ctx context.Context, id string) (unlock func(), err error) {
	dir := filepath.Join(s.Dir, ".copies") // not a valid name of a project
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := waitLock(ctx, filepath.Join(dir, id), nil)
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Remove() }, nil // a remaining file does no harm
}

// waitLock waits for the lock at path. If meanwhile is not nil, waitLock calls it after each
// failed attempt.
func waitLock(ctx context.Context, path string, meanwhile func()) (*fsutil.Lock, error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		lock, err := fsutil.TryLock(path)
		if !errors.Is(err, fsutil.ErrLocked) {
			return lock, err
		}
		if meanwhile != nil {
			meanwhile()
		}
		if err := sleepContext(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// sleepContext waits for d or the end of ctx.
func sleepContext(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
