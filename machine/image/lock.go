//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Locks are flock(2) on files and directories. They belong to the open file:
// they work between Stores of one process as between processes, pass to a child
// that inherits the file, and end when the last process closes the file, even
// by kill -9.
const (
	lockShared    = unix.LOCK_SH
	lockExclusive = unix.LOCK_EX
)

// tryLock locks the file or directory at path without waiting. The error is
// fsutil.ErrLocked if another holder has the lock, and fs.ErrNotExist if there is no
// such file.
func tryLock(path string, how int) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := fsutil.Flock(f, how|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// acquireLock waits for the named lock of the store, and locks it exclusively. unlock
// releases it.
func (s *Store) acquireLock(ctx context.Context, name string) (unlock func(), err error) {
	l, err := fsutil.AwaitLock(ctx, s.storePath(locksDir, name))
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Remove() }, nil // a sweep removes a file that stays
}

// A tempDir is a directory that its owner keeps locked as long as it lives.
type tempDir struct {
	path string
	lock *os.File
	n    int // names given out
}

func newTempDir(parent string) (*tempDir, error) {
	for {
		path := filepath.Join(parent, fmt.Sprintf("%d-%08x", os.Getpid(), rand.Uint32()))
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, err
		}
		l, err := tryLock(path, lockExclusive)
		if err == nil {
			return &tempDir{path: path, lock: l}, nil
		}
		// A sweep locked or removed it before we could lock it.
		if err != fsutil.ErrLocked && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

func (t *tempDir) close() error {
	err := fsutil.RemoveAll(t.path)
	t.lock.Close()
	return err
}
