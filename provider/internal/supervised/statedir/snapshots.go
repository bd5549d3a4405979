package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// SnapshotMeta is the file in a snapshot's directory that says what it is.
const SnapshotMeta = "snapshot.json"

// Snapshot is the directory of a complete snapshot.
func (d Dir) Snapshot(id string) string { return filepath.Join(string(d), "snapshots", id) }

// NewSnapshot is the directory in which a snapshot is written until it is
// complete. Its name says whose it is, for those who find it after a crash.
func (d Dir) NewSnapshot(sandbox, id string) string {
	return filepath.Join(string(d), "snapshots", newPrefix+sandbox+"-"+id)
}

// FinishSnapshot gives a complete snapshot its name, under which it is found.
// What has that name is whole, also after a loss of power.
func (d Dir) FinishSnapshot(sandbox, id string) error {
	dir := d.NewSnapshot(sandbox, id)
	if err := fsutil.Sync(dir); err != nil {
		return err
	}
	return os.Rename(dir, d.Snapshot(id))
}

// SnapshotIDs lists the complete snapshots.
func (d Dir) SnapshotIDs() ([]string, error) { return d.listIDs("snapshots", "") }

// RemoveSnapshot deletes a complete snapshot, for others at once; fs.ErrNotExist
// when there is none.
func (d Dir) RemoveSnapshot(id string) error {
	dir := d.Snapshot(id)
	if _, err := os.Lstat(dir); err != nil {
		return err
	}
	return discardDir(dir)
}

// DropSnapshots deletes what was begun of the sandbox's snapshots and is not
// complete. The caller holds the sandbox's lock, so that nobody completes one;
// a supervisor that nobody waits for may still be writing one, to no end.
func (d Dir) DropSnapshots(sandbox string) error {
	unfinished, err := d.listUnfinished()
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range unfinished[sandbox] {
		errs = append(errs, fsutil.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// SweepSnapshots deletes the unfinished snapshots of all sandboxes whose lock is
// free.
func (d Dir) SweepSnapshots() error {
	unfinished, err := d.listUnfinished()
	if err != nil {
		return err
	}
	var errs []error
	for sandbox, paths := range unfinished {
		errs = append(errs, d.sweepSnapshots(sandbox, paths))
	}
	return errors.Join(append(errs, d.sweepIncomplete())...)
}

// sweepSnapshots deletes unfinished snapshots of one sandbox. They were listed
// before its lock is looked at: if that is gone, or free now, then nobody
// completes them.
func (d Dir) sweepSnapshots(sandbox string, paths []string) error {
	lock, err := d.TryLock(sandbox)
	if errors.Is(err, ErrBusy) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer lock.Release()
	var errs []error
	for _, path := range paths {
		errs = append(errs, fsutil.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// listUnfinished lists the directories of unfinished snapshots by sandbox.
func (d Dir) listUnfinished() (map[string][]string, error) {
	paths, err := d.listPrefixed("snapshots", newPrefix)
	list := map[string][]string{}
	for _, path := range paths {
		sandbox, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), newPrefix), "-")
		list[sandbox] = append(list[sandbox], path)
	}
	return list, err
}

// abandonedAge is how long nothing may have been written to a snapshot without
// SnapshotMeta until it is taken for one that was given up.
const abandonedAge = time.Hour

// sweepIncomplete deletes what was given up of snapshots by versions that wrote them
// under their names from the first.
func (d Dir) sweepIncomplete() error {
	ids, err := d.SnapshotIDs()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		dir := d.Snapshot(id)
		if _, err := os.Lstat(filepath.Join(dir, SnapshotMeta)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if age, err := idleTime(dir); err == nil && age > abandonedAge {
			errs = append(errs, discardDir(dir))
		}
	}
	return errors.Join(errs...)
}

// idleTime returns for how long nothing in the directory was changed.
func idleTime(dir string) (time.Duration, error) {
	var last time.Time
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
		return err
	})
	return time.Since(last), err
}
