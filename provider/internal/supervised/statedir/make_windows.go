package statedir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// lockPath returns the path of the sandbox's lock. It lies outside of the sandbox's
// directory, which could not be renamed with an open file in it.
func (d Dir) lockPath(id string) string { return filepath.Join(string(d), "locks", id) }

// checkLock returns l and err, unless the sandbox has no directory: then it removes the
// lock, which guards nothing, and returns fs.ErrNotExist.
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
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout) // for a process that looks, or is just removing one
	defer cancel()
	l, err := fsutil.AwaitLock(ctx, d.lockPath(id))
	if ctx.Err() != nil {
		err = ErrBusy
	}
	if err != nil {
		l.Release()
		return nil, err
	}
	if err := os.Mkdir(d.Sandbox(id), 0o700); err != nil { // another process was faster
		l.Release()
		return nil, err
	}
	return l, nil
}

// Begin returns errors.ErrUnsupported: the lock of a sandbox has its id.
func (d Dir) Begin() (*Begun, error) { return nil, errors.ErrUnsupported }

// Assign returns errors.ErrUnsupported.
func (b *Begun) Assign(Dir, string) (*fsutil.Lock, error) { return nil, errors.ErrUnsupported }

// sweepBegun does nothing: no directory is begun under another name.
func sweepBegun(string) error { return nil }

// dropLock removes the lock of a removed sandbox; the caller holds it.
func (d Dir) dropLock(id string) error { return removeFile(d.lockPath(id)) }

// sweepLocks removes locks that have no directory.
func (d Dir) sweepLocks() error {
	ids, err := d.listIDs("locks", "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, id := range ids {
		if pathExists(d.Sandbox(id)) {
			continue
		}
		if l, lockErr := d.TryLock(id); lockErr == nil { // another process has just made the directory
			l.Release()
		}
	}
	return err
}
