//go:build unix

package fsutil

import (
	"errors"
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

// TryShareExisting is TryLockExisting for who only looks whether somebody holds
// the lock: many may look at the same time, and do not take each other for it.
func TryShareExisting(path string) (*Lock, error) {
	return lock(path, 0, syscall.LOCK_SH|syscall.LOCK_NB)
}

// lock takes the lock on the file that path names then.
func lock(path string, flags, how int) (*Lock, error) {
	for {
		file, err := os.OpenFile(path, flags|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err = Flock(file, how); err == nil {
			return &Lock{file}, nil
		}
		file.Close()
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// Flock is flock(2) on a file or directory that was opened by its path: for
// locks that are shared, or that a child inherits, which end when all who have
// them have closed the file. It is ErrLocked if how says not to wait and another
// holds the lock, and fs.ErrNotExist if what is at the path has been removed, or
// replaced, since it was opened: what is locked then guards nothing.
func Flock(file *os.File, how int) error {
	err := syscall.EINTR
	for err == syscall.EINTR {
		err, _ = syscall.Flock(int(file.Fd()), how).(syscall.Errno)
	}
	switch err {
	case 0:
	case syscall.EWOULDBLOCK:
		return ErrLocked
	default:
		return &fs.PathError{Op: "lock", Path: file.Name(), Err: err}
	}
	held, err1 := file.Stat()
	now, err2 := os.Stat(file.Name())
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if !os.SameFile(held, now) {
		return &fs.PathError{Op: "lock", Path: file.Name(), Err: fs.ErrNotExist}
	}
	return nil
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
