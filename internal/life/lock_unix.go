//go:build unix

package life

import (
	"errors"
	"os"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// A lockFile is held by at most one program, until it ends.
type lockFile struct{ file *os.File }

// lock takes the lock without waiting. Kinds: ErrAlreadyExists (it is held).
func lock(name string) (*lockFile, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return &lockFile{file}, nil
	}
	file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, atoll.Errorf("lock", name, atoll.ErrAlreadyExists, "another program holds it")
	}
	return nil, err
}

// unlock releases the lock, also where a child that has not yet executed its
// program still has the descriptor.
func (l *lockFile) unlock() {
	_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	_ = l.file.Close()
}

// remove deletes the lock's file and releases it.
func (l *lockFile) remove() {
	_ = os.Remove(l.file.Name()) // a file that is left does no harm
	l.unlock()
}
