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

	"github.com/seed46cd37a8/atoll/internal/disk"
)

// Locks are flock(2) on files and directories: they belong to the open file,
// so they work between Stores of one process as between processes, they pass
// to a child that inherits the file, and they end with the last one who has it
// open, even by kill -9.
const (
	lockShared    = unix.LOCK_SH
	lockExclusive = unix.LOCK_EX
)

var errLocked = errors.New("locked by another")

// tryLock locks what is at path without waiting: errLocked when another has it,
// fs.ErrNotExist when it is not there, or was removed in the meantime.
func tryLock(path string, how int) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := flock(f, path, how); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// flock locks f and makes sure that it is still what is found at path.
func flock(f *os.File, path string, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			return errLocked
		}
		if err != nil {
			return &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		break
	}
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(mine, there) {
		return &fs.PathError{Op: "flock", Path: path, Err: fs.ErrNotExist}
	}
	return nil
}

// lock waits until it alone has the named lock of the store. The function that
// it returns gives it back.
func (s *Store) lock(ctx context.Context, name string) (unlock func(), err error) {
	path := s.path(locksDir, name)
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = flock(f, path, lockExclusive)
		if err == nil {
			return func() {
				os.Remove(path) // before the lock is given back: who waits for it notices
				f.Close()
			}, nil
		}
		f.Close()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by the one who had it
		}
		if err != errLocked {
			return nil, err
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
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
		if err != errLocked && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

func (t *tempDir) close() error {
	err := disk.RemoveAll(t.path)
	t.lock.Close()
	return err
}
