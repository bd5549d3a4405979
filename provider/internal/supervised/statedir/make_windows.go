package statedir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// lockPath is the lock of the sandbox. It lies outside of its directory, which could not be
// renamed with an open file in it.
func (d Dir) lockPath(id string) string { return filepath.Join(string(d), "locks", id) }

// checkLock is what is known of the lock when it was tried: one of a sandbox without a
// directory guards nothing, and is removed.
func (d Dir) checkLock(id string, l *fsutil.Lock, err error) (*fsutil.Lock, error) {
	if err != nil || pathExists(d.Sandbox(id)) {
		return l, err
	}
	return nil, errors.Join(fs.ErrNotExist, l.Remove())
}

func (d Dir) makeSandbox(id string) (*fsutil.Lock, error) {
	if err := os.MkdirAll(filepath.Dir(d.lockPath(id)), 0o700); err != nil {
		return nil, err
	}
	if pathExists(d.Sandbox(id)) {
		return nil, fs.ErrExist
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout) // for who looks, or is about to have removed one
	defer cancel()
	l, err := fsutil.AwaitLock(ctx, d.lockPath(id))
	if ctx.Err() != nil {
		err = ErrBusy
	}
	if err != nil {
		l.Release()
		return nil, err
	}
	if err := os.Mkdir(d.Sandbox(id), 0o700); err != nil { // somebody was faster
		l.Release()
		return nil, err
	}
	return l, nil
}

// sweepBegun does nothing: no directory is begun under another name.
func sweepBegun(string) error { return nil }

// dropLock removes the lock of a sandbox that was removed, which is held.
func (d Dir) dropLock(id string) error { return removeFile(d.lockPath(id)) }

// sweepLocks removes locks that were left without a directory.
func (d Dir) sweepLocks() error {
	ids, err := d.listIDs("locks", "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, id := range ids {
		if pathExists(d.Sandbox(id)) {
			continue
		}
		if l, lockErr := d.TryLock(id); lockErr == nil { // somebody has just made it
			l.Release()
		}
	}
	return err
}
