package fsutil

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// A Lock is held by at most one, until it is released or its process ends. A nil
// Lock holds nothing.
type Lock struct{ file *os.File }

// WaitLock takes the lock, which is the file at path, made if it is missing. It
// waits as long as it takes, so nobody may hold it for more than an instant.
func WaitLock(path string) (*Lock, error) {
	return lock(path, windows.OPEN_ALWAYS, windows.LOCKFILE_EXCLUSIVE_LOCK)
}

// TryLock is WaitLock without waiting: it is ErrLocked when the lock is held.
func TryLock(path string) (*Lock, error) {
	return lock(path, windows.OPEN_ALWAYS, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY)
}

// TryLockExisting is TryLock for a file that is there: else it is fs.ErrNotExist.
func TryLockExisting(path string) (*Lock, error) {
	return lock(path, windows.OPEN_EXISTING, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY)
}

// TryShareExisting is TryLockExisting for who only looks whether somebody holds
// the lock: many may look at the same time, and do not take each other for it.
func TryShareExisting(path string) (*Lock, error) {
	return lock(path, windows.OPEN_EXISTING, windows.LOCKFILE_FAIL_IMMEDIATELY)
}

// lock takes the lock on the file that path names then.
func lock(path string, how, flags uint32) (*Lock, error) {
	for {
		l, err := open(path, how)
		if err != nil {
			return nil, err
		}
		if err = l.take(flags); err == nil {
			return l, nil
		}
		l.file.Close()
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// open opens the lock's file, which others may rename and remove meanwhile.
func open(path string, how uint32) (*Lock, error) {
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

// take is ErrLocked if another has the lock and flags say not to wait, and
// fs.ErrNotExist if what is at the path has been removed, or replaced, since it was
// opened: what is locked then guards nothing.
func (l *Lock) take(flags uint32) error {
	err := windows.LockFileEx(windows.Handle(l.file.Fd()), flags, 0, 1, 0, region())
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

// region is the byte that is locked: far behind what a file holds, because nobody
// else can read a locked one.
func region() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: 0x7fffffff} }

// Remove deletes the lock's file and lets go of the lock.
func (l *Lock) Remove() error {
	defer l.Release()
	return os.Remove(l.file.Name())
}

// Release lets go of the lock.
func (l *Lock) Release() {
	if l != nil {
		_ = windows.UnlockFileEx(windows.Handle(l.file.Fd()), 0, 1, 0, region()) // closing does it else, some time later
		_ = l.file.Close()
	}
}
