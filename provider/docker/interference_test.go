//go:build linux

package docker_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// providerModes are the options for sandboxes with and without a guest.
var providerModes = map[string]func(*docker.Options){"guest": func(*docker.Options) {}, "plain": withoutGuest}

// engineClient returns a client of the test engine.
func engineClient(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.WithHost(needEngine(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// If somebody else removes its container, a sandbox counts as removed. A new sandbox with its id
// gets its data volume.
func TestContainerRemovedByOthers(t *testing.T) {
	c := engineClient(t)
	for name, change := range providerModes {
		t.Run(name, func(t *testing.T) {
			p := open(t, change)
			defer p.Close()
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
			defer cancel()
			sb, err := p.Create(ctx, &atoll.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"sh", "-c", "echo kept > /work/file"}}); err != nil {
				t.Fatal(err)
			}
			seen := make(chan error, 1)
			go func() {
				seen <- watchUntil(ctx, p, func(st atoll.Status) bool { return st.ID == sb.ID() && st.State == atoll.StateRemoved })
			}()
			waiting, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := watchUntil(ctx, p, func(st atoll.Status) bool { return st.ID == sb.ID() }); err != nil { // waits until this watch listens; the other one then does, too
				t.Fatal(err)
			}
			if _, err := c.ContainerRemove(ctx, optionsOf(p).Prefix+"-session-"+sb.ID(), client.ContainerRemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			if err := <-seen; err != nil {
				t.Errorf("Watch: %v", err)
			}
			if _, err := waiting.Wait(ctx); err != nil && atoll.KindOf(err) != atoll.ErrNotFound && atoll.KindOf(err) != atoll.ErrStopped {
				t.Errorf("Wait: %v", err)
			}
			if _, err := sb.Status(ctx); atoll.KindOf(err) != atoll.ErrNotFound {
				t.Errorf("Status: %v", err)
			}
			if _, err := sb.Exec(ctx, &atoll.Command{Args: []string{"true"}}); atoll.KindOf(err) != atoll.ErrNotFound {
				t.Errorf("Exec: %v", err)
			}
			again, err := p.Create(ctx, &atoll.Spec{ID: sb.ID()})
			if err != nil {
				t.Fatal(err)
			}
			if out, err := atoll.Output(ctx, again, &atoll.Command{Args: []string{"cat", "/work/file"}}); err != nil || string(out) != "kept\n" {
				t.Errorf("the data volume holds %q, %v", out, err)
			}
			if err := again.Remove(ctx, atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
	}
}

// Create removes the container of an interrupted creation that has its name, and leaves other
// containers alone.
func TestContainerNameInUse(t *testing.T) {
	c := engineClient(t)
	p := open(t)
	defer p.Close()
	for name, tt := range map[string]struct {
		half bool
		kind atoll.Kind
	}{"half created": {true, ""}, "somebody else's": {false, atoll.ErrAlreadyExists}} {
		t.Run(name, func(t *testing.T) {
			id := atoll.NewID()
			config := &container.Config{Image: busybox}
			if tt.half {
				config.Labels = map[string]string{
					"atoll": "true", "atoll.owner": optionsOf(p).Prefix, "atoll.session": id, "atoll.project": "default", "atoll.spec": `{"id":"` + id + `","project":"default"}`,
				}
			}
			made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: optionsOf(p).Prefix + "-session-" + id, Config: config})
			if err != nil {
				t.Fatal(err)
			}
			defer c.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
			sb, err := p.Create(t.Context(), &atoll.Spec{ID: id})
			if atoll.KindOf(err) != tt.kind {
				t.Fatalf("Create: %v, want kind %q", err, tt.kind)
			}
			_, lookErr := c.ContainerInspect(t.Context(), made.ID, client.ContainerInspectOptions{})
			if gone := lookErr != nil; gone != tt.half {
				t.Errorf("ContainerInspect of the first container: %v", lookErr)
			}
			if err == nil {
				if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
					t.Errorf("Remove: %v", err)
				}
			}
		})
	}
}

// Create retries if a registry fails temporarily.
func TestPullRetry(t *testing.T) {
	p := open(t)
	defer p.Close()
	reg := serveRegistry(t)
	ref := reg.Push("flaky:1", testimage.Tiny(t, "text"))
	var refused atomic.Int32
	reg.Fault(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refused.Load() == 0 {
				refused.Add(1)
				http.Error(w, "come again", http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	sb, err := p.Create(t.Context(), &atoll.Spec{Image: ref})
	if err != nil || refused.Load() == 0 {
		t.Fatalf("Create: %v, after %d refusals", err, refused.Load())
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

// An image that the engine had already does not become Atoll's by a pull that finds the same one. A newer one does.
func TestPullOfAnImageOfOthers(t *testing.T) {
	p := openForTest(t)
	reg := serveRegistry(t)
	ref := reg.Push("theirs:1", testimage.Tiny(t, "text"))
	pulled, err := engineClient(t).ImagePull(t.Context(), ref, client.ImagePullOptions{})
	if err == nil {
		err = pulled.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		text string
		ours int
	}{{"text", 0}, {"newer", 1}} {
		reg.Push("theirs:1", testimage.Tiny(t, tt.text))
		if err := p.Prepare(t.Context(), &atoll.Spec{Image: ref, Pull: atoll.PullAlways}, nil); err != nil {
			t.Fatal(err)
		}
		if all, err := p.Images(t.Context()); err != nil || len(all) != tt.ours {
			t.Errorf("after a pull of %s: %+v, %v; want %d images", tt.text, all, err, tt.ours)
		}
	}
	if pruned, err := p.PruneImages(t.Context(), atoll.PruneOptions{All: true}); err != nil || len(pruned.Images) != 1 {
		t.Errorf("PruneImages: %+v, %v; want the newer image pruned", pruned, err)
	}
}

// PruneImages skips an image that a container of somebody else uses, and does not fail.
func TestPruneKeepsImagesInUse(t *testing.T) {
	p := openForTest(t)
	reg := serveRegistry(t)
	ref := reg.Push("shared:1", testimage.Tiny(t, "text"))
	if err := p.Prepare(t.Context(), &atoll.Spec{Image: ref}, nil); err != nil {
		t.Fatal(err)
	}
	c := engineClient(t)
	made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: ref, Cmd: []string{"x"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	pruned, err := p.PruneImages(t.Context(), atoll.PruneOptions{All: true})
	if err != nil || len(pruned.Images) > 0 {
		t.Errorf("PruneImages: %+v, %v; want no image pruned", pruned, err)
	}
	all, err := p.Images(t.Context())
	if err != nil || len(all) != 1 || all[0].Ref != ref || !all[0].InUse {
		t.Errorf("Images: %+v, %v; want the image in use", all, err)
	}
	wantKind(t, "RemoveImage", p.RemoveImage(t.Context(), ref, false), atoll.ErrConflict)
}
