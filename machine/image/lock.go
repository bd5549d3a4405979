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
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Locks are flock(2) on files and directories: they belong to the open file,
// so they work between Stores of one process as between processes, they pass
// to a child that inherits the file, and they end with the last one who has it
// open, even by kill -9.
const (
	lockShared    = unix.LOCK_SH
	lockExclusive = unix.LOCK_EX
)

// tryLock locks what is at path without waiting: fsutil.ErrLocked when another has
// it, fs.ErrNotExist when it is not there, or was removed in the meantime.
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

// lock waits until it alone has the named lock of the store. The function that
// it returns gives it back.
func (s *Store) lock(ctx context.Context, name string) (unlock func(), err error) {
	l, err := fsutil.AwaitLock(ctx, s.path(locksDir, name))
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Remove() }, nil // one that stays is swept up
}

// sleep waits for d, give or take a fifth, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// A tempDir is a directory that is locked as long as its owner lives.
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
		// A sweep took it for a dead one's before it was locked.
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
