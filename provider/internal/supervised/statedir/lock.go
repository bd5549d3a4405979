package statedir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// ErrBusy says that another process, or another goroutine of this one, holds the lock.
var ErrBusy = fsutil.ErrLocked

// Lock takes the lock that guards the life of the sandbox, and waits for it until ctx ends.
// It returns fs.ErrNotExist if the sandbox has no directory, or loses it meanwhile.
func (d Dir) Lock(ctx context.Context, id string) (*fsutil.Lock, error) {
	l, err := fsutil.AwaitLock(ctx, d.lockPath(id))
	return d.checkLock(id, l, err)
}

// TryLock is Lock without waiting: it returns ErrBusy if the lock is held.
func (d Dir) TryLock(id string) (*fsutil.Lock, error) {
	l, err := fsutil.TryLock(d.lockPath(id))
	return d.checkLock(id, l, err)
}

// Busy reports whether anybody holds the sandbox's lock, or its directory is gone. To find
// out, it takes the lock for a moment.
func (d Dir) Busy(id string) bool {
	l, err := fsutil.TryLockExisting(d.lockPath(id))
	l, err = d.checkLock(id, l, err)
	defer l.Release()
	return errors.Is(err, ErrBusy) || errors.Is(err, fs.ErrNotExist)
}

// Make makes the sandbox's directory with its lock taken, so that nobody ever sees it
// unlocked; fs.ErrExist if it exists.
func (d Dir) Make(id string) (l *fsutil.Lock, err error) {
	const tries = 100 // a sweep may mistake a directory without a lock for an abandoned one, repeatedly on a busy machine
	for range tries {
		l, err = d.makeSandbox(id)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrBusy) {
			break
		}
	}
	return l, err
}

// A Begun is the directory of a sandbox that has no id yet. A sweep removes it once its lock is free.
type Begun struct {
	path string
	lock *fsutil.Lock // nil after Assign
}

// Path returns the directory, before Assign.
func (b *Begun) Path() string { return b.path }

// Remove removes the directory, unless it has been assigned.
func (b *Begun) Remove() error {
	if b.lock == nil {
		return nil
	}
	defer b.lock.Release()
	return os.RemoveAll(b.path)
}

// A SupervisorLock is held by a supervisor as long as it lives. Unlike other locks, it can
// be inspected while a supervisor starts.
type SupervisorLock struct{ f *os.File }

// Release releases the lock.
func (l *SupervisorLock) Release() { l.f.Close() }

// LockSupervisor takes the supervisor's lock for this process. ErrBusy means that the
// sandbox has a supervisor.
func (d Dir) LockSupervisor(id string) (*SupervisorLock, error) {
	f, err := os.OpenFile(d.supervisorLockPath(id), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = takeLock(f); err == nil {
		err = writeHolder(f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return &SupervisorLock{f}, nil
}

// writeHolder writes the identity of this process to the lock that it holds.
func writeHolder(f *os.File) error {
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

// Supervisor returns the process that holds, or last held, the supervisor's lock: from its
// first moment on, when no record names it yet.
func (d Dir) Supervisor(id string) (holder Identity, err error) {
	text, err := os.ReadFile(d.supervisorLockPath(id))
	if err == nil {
		err = json.Unmarshal(text, &holder)
	}
	return holder, err
}

// Alive reports whether the sandbox has a supervisor. Looking does not keep a supervisor
// from starting.
func (d Dir) Alive(id string) bool { return isLocked(d.supervisorLockPath(id)) }

func (d Dir) supervisorLockPath(id string) string { return filepath.Join(d.Sandbox(id), "keeper.lock") }
