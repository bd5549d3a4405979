//go:build linux

package modal

import (
	"errors"
	"testing"

	"github.com/seed46cd37a8/atoll"
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
			p.opts.step = func(name string) error {
				if name != "life" {
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
			made, err := spec.MadeBy("modal")
			if err != nil {
				t.Fatal(err)
			}
			c := &creation{p: p, spec: made}
			if err := errors.Join(c.writeRecord(t.Context()), c.createVolumes(t.Context())); err != nil {
				t.Fatal(err)
			}
			meanwhile()
			if err := errors.Join(p.dropSandbox(t.Context(), c.r), p.deleteVolumesOf(t.Context(), c.r)); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := account(t, Options{})
			other, err := New(p.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			spec := &atoll.Spec{NoStart: true, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/cache"}}}
			there := func() (names []string) {
				t.Helper()
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
			if names := there(); len(names) > 0 {
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
			if names := there(); len(names) != 1 || names[0] != "cache" {
				t.Errorf("there are %q, want that which another sandbox has had", names)
			}
		})
	}
}
