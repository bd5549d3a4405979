//go:build unix

package inprocess

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// cached is a sandbox with the volume "cache".
var cached = atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/cache"}}}

// The volumes of a sandbox are in use, whichever program's it is.
func TestVolumesOfAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	theirs, ours := newLab(t, dir), newLab(t, dir)
	sb := theirs.create(t, cached)
	must(t, "write", atoll.WriteFile(t.Context(), sb, "cache/file", nil, 0o644))
	list, err := ours.Volumes(t.Context(), "")
	must(t, "volumes", err)
	for _, v := range list {
		if !v.InUse {
			t.Errorf("not in use: %+v", v)
		}
		wantKind(t, "remove "+v.Name, ours.RemoveVolume(t.Context(), "", v.Name), atoll.ErrConflict)
	}
	wantKind(t, "remove the project", ours.RemoveProject(t.Context(), atoll.DefaultProject), atoll.ErrConflict)
	if _, err := atoll.ReadFile(t.Context(), sb, "cache/file"); err != nil || len(list) != 2 {
		t.Errorf("read: %v; volumes %+v, want 2", err, list)
	}
	must(t, "remove", sb.Remove(t.Context(), atoll.RemoveVolumes()))
	must(t, "remove the project", ours.RemoveProject(t.Context(), atoll.DefaultProject))
}

// A Create that fails leaves the volume that it made if another program's
// sandbox has it by then.
func TestUndoneBesideAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	theirs := newLab(t, dir)
	fail := errors.New("no")
	ours := newSteppedLab(t, dir, func(name string) error {
		if name != "mount" { // the volume is made
			return nil
		}
		theirs.create(t, cached)
		return fail
	})
	spec := cached
	if _, err := ours.Create(t.Context(), &spec); !errors.Is(err, fail) {
		t.Errorf("create: %v, want %v", err, fail)
	}
	if _, err := os.Stat(filepath.Join(dir, "volumes/default/cache")); err != nil {
		t.Errorf("the volume: %v", err)
	}
}

// What a removed sandbox has left goes with its handle, unless another program
// has a sandbox of its id again.
func TestLeftToAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	theirs, ours := newLab(t, dir), newLab(t, dir)
	old := ours.create(t, atoll.Spec{})
	must(t, "remove", old.Remove(t.Context()))
	sb := theirs.create(t, atoll.Spec{ID: old.ID()})
	must(t, "write", atoll.WriteFile(t.Context(), sb, "file", nil, 0o644))
	must(t, "remove", old.Remove(t.Context(), atoll.RemoveVolumes()))
	if _, err := atoll.ReadFile(t.Context(), sb, "file"); err != nil {
		t.Errorf("read: %v", err)
	}
}

// A sandbox that is made has its volume as long as it is there, however eagerly
// other programs remove it.
func TestVolumeRemovedWhileUsersCome(t *testing.T) {
	dir := t.TempDir()
	done := make(chan struct{})
	var removers sync.WaitGroup
	defer removers.Wait()
	defer close(done)
	for range 2 {
		beside := newLab(t, dir)
		removers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				err := beside.RemoveVolume(context.Background(), "", "cache")
				if k := atoll.KindOf(err); err != nil && k != atoll.ErrNotExist && k != atoll.ErrConflict {
					t.Error(err)
				}
			}
		})
	}
	l := newLab(t, dir)
	for range 100 {
		sb := l.create(t, cached)
		must(t, "write", atoll.WriteFile(t.Context(), sb, "cache/file", nil, 0o644))
		if _, err := os.Stat(filepath.Join(dir, "volumes/default/cache/file")); err != nil {
			t.Errorf("on the volume: %v", err)
		}
		must(t, "remove", sb.Remove(t.Context(), atoll.RemoveVolumes()))
	}
}

// A record of which not all makes sense still says which volumes are in use, and
// one that says nothing keeps nobody from his.
func TestVolumesOfDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	l := newLab(t, dir)
	must(t, "make", l.volumes.Make(atoll.DefaultProject, "cache"))
	must(t, "make", l.volumes.Make(atoll.DefaultProject, "other"))
	forge(t, dir, atoll.StateRunning, true, func(st *atoll.Status) {
		st.Spec.Mounts = []atoll.Mount{{Type: "of tomorrow", Source: "cache", Target: "/work/cache"}}
	})
	must(t, "write", os.WriteFile(filepath.Join(dir, "sandboxes", atoll.NewID()+".json"), []byte("{"), 0o600))
	wantKind(t, "remove cache", l.RemoveVolume(t.Context(), "", "cache"), atoll.ErrConflict)
	must(t, "remove other", l.RemoveVolume(t.Context(), "", "other"))
}

// A sandbox that was made when it could still have another's data volume starts
// again.
func TestMountOfADataVolume(t *testing.T) {
	dir := t.TempDir()
	other := forge(t, dir, atoll.StateStopped, true, nil)
	id := forge(t, dir, atoll.StateStopped, true, func(st *atoll.Status) {
		st.Spec.Mounts = []atoll.Mount{{Type: atoll.MountVolume, Source: "data-" + other, Target: "/work/other"}}
	})
	l := newLab(t, dir)
	must(t, "start", l.get(t, id).Start(t.Context()))
}
