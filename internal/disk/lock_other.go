//go:build !unix

package disk

import "os"

// A Lock is a mere marker on systems that have no flock: there, two programs
// must not share a directory.
type Lock struct{ path string }

// WaitLock takes the lock, which is the file at path, made if it is missing.
func WaitLock(path string) (*Lock, error) { return lock(path, os.O_CREATE) }

// TryLock takes the lock.
func TryLock(path string) (*Lock, error) { return lock(path, os.O_CREATE) }

// TryLockExisting is TryLock for a file that is there: else it is fs.ErrNotExist.
func TryLockExisting(path string) (*Lock, error) { return lock(path, 0) }

// TryShareExisting is TryLockExisting.
func TryShareExisting(path string) (*Lock, error) { return lock(path, 0) }

func lock(path string, flags int) (*Lock, error) {
	file, err := os.OpenFile(path, flags|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &Lock{path}, file.Close()
}

// Remove deletes the lock's file.
func (l *Lock) Remove() error { return os.Remove(l.path) }

// Release does nothing.
func (l *Lock) Release() {}
