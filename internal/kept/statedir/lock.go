//go:build unix

package statedir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/disk"
)

// ErrBusy says that another process, or another goroutine of this one, holds
// the lock.
var ErrBusy = disk.ErrLocked

// Lock takes the lock that guards the life of the sandbox, waiting for it as
// long as ctx lasts. It is fs.ErrNotExist when the sandbox has no directory,
// also when it lost it while we waited.
func (d Dir) Lock(ctx context.Context, id string) (*disk.Lock, error) {
	return disk.AwaitLock(ctx, d.lock(id))
}

// TryLock is Lock without waiting: it is ErrBusy when the lock is held.
func (d Dir) TryLock(id string) (*disk.Lock, error) {
	return disk.TryLock(d.lock(id))
}

func (d Dir) lock(id string) string { return filepath.Join(d.Sandbox(id), "lock") }

// Busy reports whether somebody holds the sandbox's lock, or its directory is
// gone. To find out, it takes the lock for a moment.
func (d Dir) Busy(id string) bool {
	l, err := disk.TryLockExisting(d.lock(id))
	defer l.Release()
	return errors.Is(err, ErrBusy) || errors.Is(err, fs.ErrNotExist)
}

// Make makes the sandbox's directory with its lock taken, so that nobody ever
// sees it unlocked; fs.ErrExist when it is there.
func (d Dir) Make(id string) (l *disk.Lock, err error) {
	const tries = 10 // a sweep may take what is not locked yet for what was given up
	for range tries {
		l, err = d.make(id)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrBusy) {
			break
		}
	}
	return l, err
}

func (d Dir) make(id string) (*disk.Lock, error) {
	begun := d.Sandbox(fresh + atoll.NewID())
	if err := os.Mkdir(begun, 0o700); err != nil {
		return nil, err
	}
	l, err := disk.TryLock(filepath.Join(begun, "lock"))
	if err == nil {
		err = renameNew(begun, d.Sandbox(id))
	}
	if err != nil {
		l.Release()
		return nil, errors.Join(err, os.RemoveAll(begun))
	}
	return l, nil
}

// sweepBegun removes a directory that make has given up. While it has no lock
// it can only be removed empty, so that whoever is just making one tries again
// with another.
func sweepBegun(path string) error {
	l, err := disk.TryLockExisting(filepath.Join(path, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(path)
	} else if err == nil {
		defer l.Release()
		err = os.RemoveAll(path)
	}
	if errors.Is(err, ErrBusy) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil
	}
	return err
}

// A KeeperLock is held by a keeper as long as it lives. It is of another kind
// than others: one that can be looked at while a keeper starts.
type KeeperLock struct{ f *os.File }

// Release lets go of the lock.
func (l *KeeperLock) Release() { l.f.Close() }

// LockKeeper takes the keeper's lock for this process. ErrBusy means that the
// sandbox has one.
func (d Dir) LockKeeper(id string) (*KeeperLock, error) {
	f, err := os.OpenFile(d.keeperLock(id), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = hold(f); err == nil {
		err = sign(f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return &KeeperLock{f}, nil
}

// sign writes to the lock who holds it.
func sign(f *os.File) error {
	me, err := Identify(os.Getpid())
	if err != nil {
		return err
	}
	text, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	return err
}

// Keeper is who holds, or last held, the keeper's lock: from the first moment on,
// when no record names it yet.
func (d Dir) Keeper(id string) (who Identity, err error) {
	text, err := os.ReadFile(d.keeperLock(id))
	if err == nil {
		err = json.Unmarshal(text, &who)
	}
	return who, err
}

// Alive reports whether the sandbox has a keeper. Nobody who looks keeps one from
// starting.
func (d Dir) Alive(id string) bool {
	f, err := os.Open(d.keeperLock(id))
	if err != nil {
		return false
	}
	defer f.Close()
	return held(f)
}

func (d Dir) keeperLock(id string) string { return filepath.Join(d.Sandbox(id), "keeper.lock") }
