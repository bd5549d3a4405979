//go:build unix

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// A Lock is held by at most one, until it is released or its process ends. A nil
// Lock holds nothing.
type Lock struct{ file *os.File }

// WaitLock takes the lock, which is the file at path, made if it is missing. It
// waits as long as it takes, so nobody may hold it for more than an instant.
func WaitLock(path string) (*Lock, error) { return lock(path, os.O_CREATE, syscall.LOCK_EX) }

// TryLock is WaitLock without waiting: it is ErrLocked when the lock is held.
func TryLock(path string) (*Lock, error) {
	return lock(path, os.O_CREATE, syscall.LOCK_EX|syscall.LOCK_NB)
}

// TryLockExisting is TryLock for a file that is there: else it is fs.ErrNotExist.
func TryLockExisting(path string) (*Lock, error) {
	return lock(path, 0, syscall.LOCK_EX|syscall.LOCK_NB)
}

// lock takes the lock on the file that path names then. It may have been removed,
// or replaced, since it was opened: what is held then guards nothing.
func lock(path string, flags, how int) (*Lock, error) {
	for {
		file, err := os.OpenFile(path, flags|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		l := &Lock{file}
		if err := flock(file, how); err != nil {
			file.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, ErrLocked
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		held, err1 := file.Stat()
		now, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, now) {
			return l, nil
		}
		l.Release()
		if err := errors.Join(err1, err2); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

func flock(file *os.File, how int) error {
	for {
		if err := syscall.Flock(int(file.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// Remove deletes the lock's file and lets go of the lock.
func (l *Lock) Remove() error {
	defer l.Release()
	return os.Remove(l.file.Name())
}

// Release lets go of the lock, also where a child that has not yet executed its
// program still has the descriptor.
func (l *Lock) Release() {
	if l != nil {
		_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN) // closing does it else
		_ = l.file.Close()
	}
}
