//go:build unix

package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// lockPath returns the path of the sandbox's lock, which goes with its directory.
func (d Dir) lockPath(id string) string { return filepath.Join(d.Sandbox(id), "lock") }

// checkLock returns l and err: a lock in the sandbox's directory needs no check.
func (d Dir) checkLock(_ string, l *fsutil.Lock, err error) (*fsutil.Lock, error) { return l, err }

func (d Dir) makeSandbox(id string) (*fsutil.Lock, error) {
	b, err := d.Begin()
	if err != nil {
		return nil, err
	}
	l, err := b.Assign(d, id)
	if err != nil {
		return nil, errors.Join(err, b.Remove())
	}
	return l, nil
}

// Begin makes the directory of a sandbox that has no id yet, with its lock taken. If a sweep interferes, it returns
// fs.ErrNotExist or ErrBusy.
func (d Dir) Begin() (*Begun, error) {
	path := d.Sandbox(newPrefix + atoll.NewID())
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	l, err := fsutil.TryLock(filepath.Join(path, "lock"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &Begun{path, l}, nil
}

// Assign makes b the directory of the sandbox id, and returns its lock. If the sandbox exists, it returns fs.ErrExist, and
// b is as before.
func (b *Begun) Assign(d Dir, id string) (*fsutil.Lock, error) {
	if err := renameNew(b.path, d.Sandbox(id)); err != nil {
		return nil, err
	}
	l := b.lock
	b.lock = nil
	return l, nil
}

// sweepBegun removes a directory that makeSandbox has given up. While it has no lock, it
// can only be removed empty, so that a makeSandbox in progress tries again with another
// one; unless it has other files, which come after the lock: those that a removal has left.
func sweepBegun(path string) error {
	lock := filepath.Join(path, "lock")
	l, err := fsutil.TryLockExisting(lock)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(path)
		if _, locked := os.Lstat(lock); errors.Is(err, syscall.ENOTEMPTY) && errors.Is(locked, fs.ErrNotExist) {
			err = os.RemoveAll(path)
		}
	} else if err == nil {
		defer l.Release()
		err = os.RemoveAll(path)
	}
	if errors.Is(err, ErrBusy) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil
	}
	return err
}

// dropLock does nothing: the lock goes with the directory.
func (d Dir) dropLock(string) error { return nil }

// sweepLocks does nothing: no lock outlives its directory.
func (d Dir) sweepLocks() error { return nil }
