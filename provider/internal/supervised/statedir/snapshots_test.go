//go:build linux

package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// beginSnapshot begins a snapshot of the sandbox.
func beginSnapshot(t *testing.T, d Dir, sandbox string) (id string) {
	t.Helper()
	id = atoll.NewID()
	dir := d.NewSnapshot(sandbox, id)
	must(t, "mkdir", os.Mkdir(dir, 0o700))
	must(t, "write", os.WriteFile(filepath.Join(dir, "checkpoint.img"), []byte("memory"), 0o600))
	return id
}

// makeSnapshot makes a complete snapshot.
func makeSnapshot(t *testing.T, d Dir, sandbox string) (id string) {
	t.Helper()
	id = beginSnapshot(t, d, sandbox)
	must(t, "write", fsutil.WriteJSON(filepath.Join(d.NewSnapshot(sandbox, id), SnapshotMeta), "whole"))
	must(t, "finish", d.FinishSnapshot(sandbox, id))
	return id
}

// Only complete snapshots are listed, and incomplete ones are deleted when nobody can
// complete them: their sandbox's lock is free, or the sandbox has gone.
func TestSweepSnapshots(t *testing.T) {
	d := openDir(t)
	free, busy, removed := makeUnlocked(t, d), makeUnlocked(t, d), atoll.NewID()
	whole := makeSnapshot(t, d, removed)
	lock, err := d.TryLock(busy)
	must(t, "lock", err)
	pending := beginSnapshot(t, d, busy)
	beginSnapshot(t, d, free)
	beginSnapshot(t, d, free)
	beginSnapshot(t, d, removed)
	if ids, err := d.SnapshotIDs(); strings.Join(ids, " ") != whole || err != nil {
		t.Errorf("snapshots %v, %v, want %s", ids, err, whole)
	}
	must(t, "sweep", d.SweepSnapshots())
	want := filepath.Base(d.NewSnapshot(busy, pending)) + " " + whole
	if got := listNames(t, string(d), "snapshots"); got != want {
		t.Errorf("after a sweep: %s, want %s", got, want)
	}
	lock.Release()
	must(t, "sweep", d.SweepSnapshots())
	if got := listNames(t, string(d), "snapshots"); got != whole {
		t.Errorf("after another: %s, want %s", got, whole)
	}
	if got := listNames(t, string(d), "sandboxes"); strings.Contains(got, removed) {
		t.Error("a sweep has made a sandbox's directory")
	}
}

func TestDropSnapshots(t *testing.T) {
	d := openDir(t)
	a, b := makeUnlocked(t, d), makeUnlocked(t, d)
	whole, other := makeSnapshot(t, d, a), beginSnapshot(t, d, b)
	beginSnapshot(t, d, a)
	must(t, "drop", d.DropSnapshots(a))
	must(t, "drop nothing", d.DropSnapshots(a))
	want := filepath.Base(d.NewSnapshot(b, other)) + " " + whole
	if got := listNames(t, string(d), "snapshots"); got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
}

// EmptyTrash finishes a removal that was interrupted, and until then the snapshot does not
// exist.
func TestRemoveSnapshot(t *testing.T) {
	d := openDir(t)
	a, b := makeSnapshot(t, d, atoll.NewID()), makeSnapshot(t, d, atoll.NewID())
	must(t, "remove", d.RemoveSnapshot(a))
	wantErr(t, "remove again", d.RemoveSnapshot(a), fs.ErrNotExist)
	must(t, "interrupted", os.Rename(d.Snapshot(b), filepath.Join(filepath.Dir(d.Snapshot(b)), trashPrefix+"x")))
	if ids, err := d.SnapshotIDs(); len(ids) > 0 || err != nil {
		t.Errorf("snapshots %v, %v", ids, err)
	}
	must(t, "empty", d.EmptyTrash())
	if got := listNames(t, string(d), "snapshots"); got != "" {
		t.Errorf("left: %s", got)
	}
}

// A snapshot that an earlier version left incomplete under its final name is deleted when
// it has not been written to for long; until then it can be removed by id.
func TestSweepHalves(t *testing.T) {
	d := openDir(t)
	half := func(age time.Duration) (id string) {
		id = atoll.NewID()
		file := filepath.Join(d.Snapshot(id), "checkpoint.img")
		must(t, "mkdir", os.Mkdir(d.Snapshot(id), 0o700))
		must(t, "write", os.WriteFile(file, []byte("memory"), 0o600))
		then := time.Now().Add(-age)
		must(t, "age", errors.Join(os.Chtimes(file, then, then), os.Chtimes(d.Snapshot(id), then, then)))
		return id
	}
	whole, young, old := makeSnapshot(t, d, atoll.NewID()), half(time.Minute), half(2*time.Hour)
	ago := time.Now().Add(-2 * time.Hour)
	must(t, "age", os.Chtimes(d.Snapshot(whole), ago, ago))
	must(t, "sweep", d.SweepSnapshots())
	for id, want := range map[string]bool{whole: true, young: true, old: false} {
		if got := pathExists(d.Snapshot(id)); got != want {
			t.Errorf("%s is there: %v, want %v", id, got, want)
		}
	}
	must(t, "remove", d.RemoveSnapshot(young))
}

// A mark tells what its maker left, once that has gone.
func TestMarks(t *testing.T) {
	d := openDir(t)
	var cleared []string
	sweep := func(err error) error {
		cleared = nil
		return d.SweepMarks(func(group, run string) error { cleared = append(cleared, group+run); return err })
	}
	held, err := d.Mark("held", "")
	must(t, "mark", err)
	gone, err := d.Mark("gone", "/run")
	must(t, "mark", err)
	done, err := d.Mark("done", "")
	must(t, "mark", err)
	must(t, "remove", done.Remove())
	gone.Release()
	must(t, "write", os.WriteFile(d.Sandbox(markPrefix+"early"), nil, 0o600)) // its maker died at once

	failure := errors.New("busy")
	wantErr(t, "a sweep that fails", sweep(failure), failure)
	for range 2 {
		if got := strings.Join(cleared, " "); got != "gone/run" {
			t.Errorf("cleared %q, want the marks whose makers have gone", got)
		}
		must(t, "sweep", sweep(nil))
	}
	if len(cleared) > 0 {
		t.Errorf("cleared %v once more", cleared)
	}
	if got := listNames(t, string(d), "sandboxes"); got != filepath.Base(held.path) {
		t.Errorf("left: %s, want the mark that is held", got)
	}
	must(t, "remove", held.Remove())

	id := makeUnlocked(t, d)
	given, err := d.Mark("/atoll-given", "/run/given")
	must(t, "mark", err)
	must(t, "give", given.AssignTo(d, id))
	must(t, "damage", os.WriteFile(d.Record(id), nil, 0o600))
	if r, err := d.Read(id); err != nil || r.Cgroup != "/atoll-given" {
		t.Errorf("without its record the sandbox has %+v, %v, want the cgroup of its mark", r, err)
	}
	must(t, "discard", discardDir(d.Sandbox(id)))
	if ids, err := d.Dirs(); len(ids) > 0 || err != nil {
		t.Errorf("sandboxes %v, %v", ids, err)
	}
}
