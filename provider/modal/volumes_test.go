//go:build linux

package modal_test

import (
	"bufio"
	"os"
	"os/exec"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// If the store has forgotten volumes, their files stay when a creation with them fails, whether
// its program undoes it or is killed; the next creation has them.
func TestForgottenVolumesStay(t *testing.T) {
	p := provider(t, func(o *modal.Options) { modal.Making(o, brokenFor) })
	for what, fail := range map[string]func(t *testing.T, spec atoll.Spec){
		"its image is missing": func(t *testing.T, spec atoll.Spec) {
			spec.Image = optionsOf(p).Image + "-none"
			if _, err := p.Create(t.Context(), &spec); atoll.KindOf(err) != atoll.ErrNotExist {
				t.Errorf("Create: %v, want no such image", err)
			}
		},
		"its maker is killed": func(t *testing.T, spec atoll.Spec) {
			makeAndKill(t, p, spec.ID)
			sweeps := reopen(t, p)
			defer sweeps.Close()
			becomes(t, "nothing is left of it", sweptWithin, func() bool {
				all, err := sweeps.List(t.Context(), atoll.Filter{})
				if err != nil {
					t.Fatal(err)
				}
				return len(all) == 0
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			id := atoll.NewID()
			spec := atoll.Spec{ID: id, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: id, Target: "/data"}}}
			sb := created(t, p, spec)
			says(t, sb, "echo work > /work/file; echo data > /data/file")
			if err := sb.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := p.Forget(t.Context()); err != nil {
				t.Fatal(err)
			}
			fail(t, spec)
			sb = created(t, p, spec)
			if got := says(t, sb, "cat /work/file /data/file"); got != "work\ndata\n" {
				t.Errorf("it has %q", got)
			}
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Error(err)
			}
			if err := p.RemoveVolume(t.Context(), "", id); err != nil {
				t.Error(err)
			}
		})
	}
}

// makeAndKill makes another program create a sandbox, and kills it when the volumes exist.
func makeAndKill(t *testing.T, p atoll.Provider, id string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	opts := optionsOf(p)
	cmd := exec.Command(exe, opts.ServerURL, opts.Prefix, opts.Image, id)
	cmd.Env = append(os.Environ(), makerEnv+"=1", breakEnv+"=start")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "start\n" {
		t.Errorf("it says %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}
