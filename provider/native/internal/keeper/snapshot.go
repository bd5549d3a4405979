//go:build linux

package keeper

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
)

// Snapshot implements supervisor.Engine: it copies the changes of the root file system and the data volume, while nothing runs.
func (e *engine) Snapshot(ctx context.Context, dir string, opts atoll.SnapshotOptions) error {
	if !e.job.Caps.Snapshot {
		return atoll.Errorf("snapshot", e.sandbox.ID(), atoll.ErrUnsupported, "it needs a writable cgroup")
	}
	release := e.init.Hold()
	defer release()
	e.freezing.Lock() // a call of Resume waits, rather than thaws
	defer e.freezing.Unlock()
	if !e.Frozen() {
		if err := e.inside.Freeze(ctx); err != nil {
			return err
		}
		defer func() { _ = e.inside.Thaw() }() // fails when the sandbox has ended
	}
	if !e.job.Spec.ReadOnlyRoot {
		copied := filepath.Join(dir, changesName)
		if err := os.Mkdir(copied, 0o700); err != nil {
			return err
		}
		if err := e.copyChanges(ctx, filepath.Join(e.job.Dir, changesName), copied); err != nil {
			return err
		}
	}
	if opts.NoWork || !e.job.Caps.Volumes {
		return nil
	}
	return e.sandbox.CopyVolume(ctx, dir)
}

// copyChanges copies the changes of a root file system to an empty directory.
func (e *engine) copyChanges(ctx context.Context, from, to string) error {
	layers, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, l := range layers {
		upper := filepath.Join(to, l.Name(), upperName)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.Mkdir(filepath.Join(to, l.Name(), workName), 0o755)); err != nil {
			return err
		}
		if err := e.sandbox.CopyLayer(ctx, filepath.Join(from, l.Name(), upperName), upper); err != nil {
			return err
		}
	}
	return nil
}

// restoreChanges makes the changes of a root file system those of the snapshot that the sandbox is made from, unless it has started
// before.
func (e *engine) restoreChanges(ctx context.Context, changes string) error {
	if e.job.Snapshot == "" {
		return nil
	}
	if _, err := os.Lstat(changes); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	made := changes + ".new" // until it is complete
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	if err := e.makeChanges(made); err != nil {
		return err
	}
	if err := e.copyChanges(ctx, filepath.Join(e.job.Snapshot, changesName), made); err != nil {
		return err
	}
	return os.Rename(made, changes)
}
