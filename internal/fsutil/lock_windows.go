package fsutil

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// A Lock is a held file lock. It has one holder at a time, until Release or the end of its
// process. A nil Lock holds nothing.
type Lock struct{ file *os.File }

// WaitLock takes the lock of the file at path, which it creates if missing. It waits
// without a limit: use it only if no holder keeps the lock for more than an instant.
func WaitLock(path string) (*Lock, error) {
	return takeLock(path, windows.OPEN_ALWAYS, windows.LOCKFILE_EXCLUSIVE_LOCK)
}

// TryLock is WaitLock without waiting: if another holder has the lock, the error is
// ErrLocked.
func TryLock(path string) (*Lock, error) {
	return takeLock(path, windows.OPEN_ALWAYS, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY)
}

// TryLockExisting is TryLock for an existing file: if there is none, the error is
// fs.ErrNotExist.
func TryLockExisting(path string) (*Lock, error) {
	return takeLock(path, windows.OPEN_EXISTING, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY)
}

// TryShareExisting is TryLockExisting with a shared lock, to check whether the lock has a
// holder: concurrent checks do not conflict with each other.
func TryShareExisting(path string) (*Lock, error) {
	return takeLock(path, windows.OPEN_EXISTING, windows.LOCKFILE_FAIL_IMMEDIATELY)
}

// takeLock opens and locks the file at path, again if it was removed or replaced meanwhile.
func takeLock(path string, how, flags uint32) (*Lock, error) {
	for {
		l, err := openLockFile(path, how)
		if err != nil {
			return nil, err
		}
		if err = l.lockFile(flags); err == nil {
			return l, nil
		}
		l.file.Close()
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// openLockFile opens the lock's file so that other processes can rename and remove it.
func openLockFile(path string, how uint32) (*Lock, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	handle, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, share, nil, how, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return &Lock{os.NewFile(uintptr(handle), path)}, nil
}

// lockFile locks the open file. The error is ErrLocked if flags say not to wait and another
// holder has the lock, and fs.ErrNotExist if the file at the path was removed or replaced
// since it was opened: a lock on the old file protects nothing.
func (l *Lock) lockFile(flags uint32) error {
	err := windows.LockFileEx(windows.Handle(l.file.Fd()), flags, 0, 1, 0, lockedRegion())
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrLocked
	}
	if err != nil {
		return &fs.PathError{Op: "lock", Path: l.file.Name(), Err: err}
	}
	held, err1 := l.file.Stat()
	now, err2 := os.Stat(l.file.Name())
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if !os.SameFile(held, now) {
		return &fs.PathError{Op: "lock", Path: l.file.Name(), Err: fs.ErrNotExist}
	}
	return nil
}

// lockedRegion returns the position of the locked byte: far beyond the content of the file,
// because other processes cannot read a locked byte.
func lockedRegion() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: 0x7fffffff} }

// Remove deletes the lock's file and releases the lock.
func (l *Lock) Remove() error {
	defer l.Release()
	return os.Remove(l.file.Name())
}

// Release releases the lock.
func (l *Lock) Release() {
	if l != nil {
		_ = windows.UnlockFileEx(windows.Handle(l.file.Fd()), 0, 1, 0, lockedRegion()) // if this fails, Close releases the lock some time later
		_ = l.file.Close()
	}
}
