package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/treecopy"
)

// SnapshotMeta is the name of the file in a snapshot's directory that describes it.
const SnapshotMeta = "snapshot.json"

// SnapshotWork is the name of the directory in that of a snapshot which has the files of the data
// volume.
const SnapshotWork = "work"

// Snapshot returns the directory of a complete snapshot.
func (d Dir) Snapshot(id string) string { return filepath.Join(string(d), "snapshots", id) }

// NewSnapshot returns the directory in which a snapshot is written until it is complete.
// Its name contains the sandbox's id, for a sweep after a crash.
func (d Dir) NewSnapshot(sandbox, id string) string {
	return filepath.Join(string(d), "snapshots", newPrefix+sandbox+"-"+id)
}

// FinishSnapshot gives a complete snapshot its final name. A directory with a final name is
// whole, even after a loss of power.
func (d Dir) FinishSnapshot(sandbox, id string) error {
	dir := d.NewSnapshot(sandbox, id)
	if err := fsutil.Sync(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, fs.DirEntry.IsDir) { // copied trees
		if err := treecopy.Sync(dir); err != nil {
			return err
		}
	}
	return os.Rename(dir, d.Snapshot(id))
}

// SnapshotIDs lists the complete snapshots.
func (d Dir) SnapshotIDs() ([]string, error) { return d.listIDs("snapshots", "") }

// RemoveSnapshot deletes a complete snapshot, for others at once; fs.ErrNotExist if there
// is none.
func (d Dir) RemoveSnapshot(id string) error {
	dir := d.Snapshot(id)
	if _, err := os.Lstat(dir); err != nil {
		return err
	}
	return discardDir(dir)
}

// DropSnapshots deletes the sandbox's incomplete snapshots. The caller holds the sandbox's
// lock, so that nobody completes one; a supervisor that nobody waits for may still be
// writing one, in vain.
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

// SweepSnapshots deletes the unfinished snapshots of all sandboxes whose lock is free.
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

// sweepSnapshots deletes unfinished snapshots of one sandbox. The caller listed them before
// this function checks the sandbox's lock: if that is gone, or free now, nobody completes
// them.
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

// abandonedAge is the time without a write after which a snapshot without SnapshotMeta
// counts as abandoned.
const abandonedAge = time.Hour

// sweepIncomplete deletes abandoned snapshots of versions that wrote snapshots under their
// final names from the start.
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

// idleTime returns the time since the last change in the directory.
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
