//go:build unix

package fsutil

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// A Lock is a held file lock. It has one holder at a time, until Release or the end of its
// process. A nil Lock holds nothing.
type Lock struct{ file *os.File }

// WaitLock takes the lock of the file at path, which it creates if missing. It waits
// without a limit: use it only if no holder keeps the lock for more than an instant.
func WaitLock(path string) (*Lock, error) { return takeLock(path, os.O_CREATE, syscall.LOCK_EX) }

// TryLock is WaitLock without waiting: if another holder has the lock, the error is
// ErrLocked.
func TryLock(path string) (*Lock, error) {
	return takeLock(path, os.O_CREATE, syscall.LOCK_EX|syscall.LOCK_NB)
}

// TryLockExisting is TryLock for an existing file: if there is none, the error is
// fs.ErrNotExist.
func TryLockExisting(path string) (*Lock, error) {
	return takeLock(path, 0, syscall.LOCK_EX|syscall.LOCK_NB)
}

// TryShareExisting is TryLockExisting with a shared lock, to check whether the lock has a
// holder: concurrent checks do not conflict with each other.
func TryShareExisting(path string) (*Lock, error) {
	return takeLock(path, 0, syscall.LOCK_SH|syscall.LOCK_NB)
}

// takeLock opens and locks the file at path, again if it was removed or replaced meanwhile.
func takeLock(path string, flags, how int) (*Lock, error) {
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

// Flock is flock(2) on a file or directory that was opened by its path. Use it for locks
// that are shared, or that a child inherits: they end when all processes have closed the
// file. The error is ErrLocked if how says not to wait and another process has the lock,
// and fs.ErrNotExist if the file at the path was removed or replaced since it was opened:
// a lock on the old file protects nothing.
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

// Remove deletes the lock's file and releases the lock.
func (l *Lock) Remove() error {
	defer l.Release()
	return os.Remove(l.file.Name())
}

// Release releases the lock, even if a child that has not yet executed its program still
// has the descriptor.
func (l *Lock) Release() {
	if l != nil {
		_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN) // if this fails, Close releases the lock
		_ = l.file.Close()
	}
}
