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

// specWithCache is the spec of a sandbox with the volume "cache".
var specWithCache = atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/cache"}}}

// The volumes of a sandbox are in use, whichever program owns it.
func TestVolumesOfAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	theirs, ours := newTestProvider(t, dir), newTestProvider(t, dir)
	sb := theirs.createSandbox(t, specWithCache)
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

// A Create that fails does not remove a volume that it created if another program's sandbox uses it by
// then.
func TestUndoneBesideAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	theirs := newTestProvider(t, dir)
	fail := errors.New("no")
	ours := newProviderWithStep(t, dir, func(name string) error {
		if name != "mount" { // before this step, the volume was created
			return nil
		}
		theirs.createSandbox(t, specWithCache)
		return fail
	})
	spec := specWithCache
	if _, err := ours.Create(t.Context(), &spec); !errors.Is(err, fail) {
		t.Errorf("create: %v, want %v", err, fail)
	}
	if _, err := os.Stat(filepath.Join(dir, "volumes/default/cache")); err != nil {
		t.Errorf("the volume: %v", err)
	}
}

// Remove on the handle of a removed sandbox deletes its data volume, unless another program has
// created a sandbox with the same id.
func TestLeftToAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	theirs, ours := newTestProvider(t, dir), newTestProvider(t, dir)
	old := ours.createSandbox(t, atoll.Spec{})
	must(t, "remove", old.Remove(t.Context()))
	sb := theirs.createSandbox(t, atoll.Spec{ID: old.ID()})
	must(t, "write", atoll.WriteFile(t.Context(), sb, "file", nil, 0o644))
	must(t, "remove", old.Remove(t.Context(), atoll.RemoveVolumes()))
	if _, err := atoll.ReadFile(t.Context(), sb, "file"); err != nil {
		t.Errorf("read: %v", err)
	}
}

// A sandbox has its volume while it exists, even if other programs try to remove the volume all the
// time.
func TestVolumeRemovedWhileUsersCome(t *testing.T) {
	dir := t.TempDir()
	done := make(chan struct{})
	var removers sync.WaitGroup
	defer removers.Wait()
	defer close(done)
	for range 2 {
		beside := newTestProvider(t, dir)
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
	l := newTestProvider(t, dir)
	for range 100 {
		sb := l.createSandbox(t, specWithCache)
		must(t, "write", atoll.WriteFile(t.Context(), sb, "cache/file", nil, 0o644))
		if _, err := os.Stat(filepath.Join(dir, "volumes/default/cache/file")); err != nil {
			t.Errorf("on the volume: %v", err)
		}
		must(t, "remove", sb.Remove(t.Context(), atoll.RemoveVolumes()))
	}
}

// A record that does not validate still names the volumes in use. One that cannot be decoded blocks no
// removal.
func TestVolumesOfDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	l := newTestProvider(t, dir)
	must(t, "make", l.volumes.Make(atoll.DefaultProject, "cache"))
	must(t, "make", l.volumes.Make(atoll.DefaultProject, "other"))
	writeRecord(t, dir, atoll.StateRunning, true, func(st *atoll.Status) {
		st.Spec.Mounts = []atoll.Mount{{Type: "of tomorrow", Source: "cache", Target: "/work/cache"}}
	})
	must(t, "write", os.WriteFile(filepath.Join(dir, "sandboxes", atoll.NewID()+".json"), []byte("{"), 0o600))
	wantKind(t, "remove cache", l.RemoveVolume(t.Context(), "", "cache"), atoll.ErrConflict)
	must(t, "remove other", l.RemoveVolume(t.Context(), "", "other"))
}

// A sandbox that mounts another one's data volume, which an earlier version allowed, can be started.
func TestMountOfADataVolume(t *testing.T) {
	dir := t.TempDir()
	other := writeRecord(t, dir, atoll.StateStopped, true, nil)
	id := writeRecord(t, dir, atoll.StateStopped, true, func(st *atoll.Status) {
		st.Spec.Mounts = []atoll.Mount{{Type: atoll.MountVolume, Source: "data-" + other, Target: "/work/other"}}
	})
	l := newTestProvider(t, dir)
	must(t, "start", l.getSandbox(t, id).Start(t.Context()))
}
