//go:build linux

package docker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// Nobody can remove a volume while a creation is about to mount it: the engine would create an
// unlabeled one instead.
func TestVolumesStayDuringCreate(t *testing.T) {
	var p *docker.Provider
	tried := 0
	p = openForTest(t, func(o *docker.Options) {
		docker.OnStep(o, func(name string) error {
			if name != "container" {
				return nil
			}
			for _, volume := range []string{atoll.CacheVolume, "v"} {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				err := atoll.RemoveVolume(ctx, p, "shared", volume)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("RemoveVolume %s: %v, want it to wait", volume, err)
				}
				tried++
			}
			return nil
		})
	})
	t.Cleanup(func() {
		if err := p.RemoveProject(context.WithoutCancel(t.Context()), "shared"); err != nil {
			t.Error(err)
		}
	})
	mounts := []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/v"}}
	if _, err := p.Create(t.Context(), &atoll.Spec{Project: "shared", Cache: true, Mounts: mounts}); err != nil {
		t.Fatal(err)
	}
	all, err := p.Volumes(t.Context(), "shared")
	if err != nil || len(all) != 3 || tried != 2 {
		t.Errorf("Volumes: %+v, %v; want the cache, v and the data volume", all, err)
	}
}

// A failed creation removes its volumes, even if the container already has them.
func TestFailedCreateRemovesVolumes(t *testing.T) {
	for _, step := range []string{"container", "start"} {
		p := openForTest(t, func(o *docker.Options) {
			docker.OnStep(o, func(name string) error {
				if name == step {
					return atoll.E("create", "", atoll.ErrUnavailable, nil)
				}
				return nil
			})
		})
		_, err := p.Create(t.Context(), &atoll.Spec{Project: "shared", Cache: true})
		wantKind(t, "Create", err, atoll.ErrUnavailable)
		if all, err := p.Volumes(t.Context(), "shared"); err != nil || len(all) > 0 {
			t.Errorf("Volumes: %+v, %v; want none", all, err)
		}
	}
}

// The engine may create a container for a program that has died, after another program has found
// the name free. Create removes that container.
func TestContainerCreatedLate(t *testing.T) {
	half, over := make(chan struct{}), make(chan struct{})
	dead := openForTest(t, func(o *docker.Options) {
		docker.OnStep(o, func(name string) error {
			if name != "preparation" {
				return nil
			}
			close(half)
			<-over
			return atoll.E("create", "", atoll.ErrUnavailable, nil)
		})
	})
	id := atoll.NewID()
	var work sync.WaitGroup
	defer work.Wait()
	defer close(over)
	opts := optionsOf(dead)
	opts.Dir = t.TempDir() // as on another machine
	docker.OnStep(&opts, func(name string) error {
		if name == "container" {
			work.Go(func() { _, _ = dead.Create(t.Context(), &atoll.Spec{ID: id}) })
			<-half
		}
		return nil
	})
	p, err := docker.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	runShell(t, sb, "true")
}

// Two programs can read the files of one stopped sandbox at the same time.
func TestFilesOfStoppedShared(t *testing.T) {
	p := openForTest(t)
	sb := createSandbox(t, p, atoll.Spec{})
	runShell(t, sb, "dd if=/dev/zero of=/work/f bs=1M count=32 2>/dev/null")
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	other := reopen(t, p)
	t.Cleanup(func() { other.Close() })
	var both sync.WaitGroup
	for name, p := range map[string]atoll.Provider{"one": p, "other": other} {
		both.Go(func() {
			sb, err := p.Get(t.Context(), sb.ID())
			for range 5 {
				var data []byte
				if err == nil {
					data, err = atoll.ReadFile(t.Context(), sb, "/work/f")
				}
				if err != nil || len(data) != 32<<20 {
					t.Errorf("provider %q read %d bytes: %v", name, len(data), err)
					return
				}
			}
		})
	}
	both.Wait()
}
