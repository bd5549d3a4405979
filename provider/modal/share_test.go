//go:build linux

package modal

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A volume that another sandbox has found stays when the creation that made it fails, whether
// its program deletes it or another one does; a volume that no other sandbox has found is
// deleted.
func TestSharedVolumeStays(t *testing.T) {
	for _, tt := range []struct {
		what  string
		fails func(t *testing.T, p *Provider, spec *atoll.Spec, meanwhile func())
	}{
		{"its maker takes it back", func(t *testing.T, p *Provider, spec *atoll.Spec, meanwhile func()) {
			planned := errors.New("as planned")
			p.engine.Step = func(name string) error {
				if name != "start" {
					return nil
				}
				meanwhile()
				return planned
			}
			if _, err := p.Create(t.Context(), spec); !errors.Is(err, planned) {
				t.Errorf("Create: %v", err)
			}
		}},
		{"its maker is killed", func(t *testing.T, p *Provider, spec *atoll.Spec, meanwhile func()) {
			p.engine.Step = func(name string) error {
				if name == "start" {
					meanwhile()
					runtime.Goexit() // undoes nothing, and ends the context that renews the lease
				}
				return nil
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer stop()
				_, _ = p.Create(ctx, spec)
			}()
			<-done
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := account(t, Options{leaseTTL: testenv.Scale(time.Second)})
			other, err := New(p.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			spec := &atoll.Spec{NoStart: true, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/cache"}}}
			there := func(want int) (names []string) {
				t.Helper()
				for end := time.Now().Add(testenv.Scale(time.Minute)); isLeft(t, p, want) && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					p.engine.Sweeper.Wake()
				}
				all, err := other.Volumes(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range all {
					if _, err := other.findVolume(t.Context(), volumeKey(v.Project, v.Name)); err != nil {
						t.Errorf("%s: %v", v.Name, err)
					}
					names = append(names, v.Name)
				}
				return names
			}
			tt.fails(t, p, spec, func() {})
			if names := there(0); len(names) > 0 {
				t.Errorf("%q are left that nobody else has found", names)
			}
			tt.fails(t, p, spec, func() {
				sb, err := other.Create(t.Context(), spec)
				if err != nil {
					t.Error(err)
					return
				}
				if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
					t.Error(err)
				}
			})
			if names := there(1); len(names) != 1 || names[0] != "cache" {
				t.Errorf("there are %q, want that which another sandbox has had", names)
			}
		})
	}
}

// isLeft reports whether a sandbox is left, or more volumes than wanted.
func isLeft(t *testing.T, p *Provider, volumes int) bool {
	t.Helper()
	sandboxes, err := p.List(t.Context(), atoll.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	all, err := p.Volumes(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return len(sandboxes) > 0 || len(all) > volumes
}
