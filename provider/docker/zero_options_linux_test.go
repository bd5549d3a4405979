package docker_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// Zero options mean the engine of the environment, the directory of the command line, and a guest that is built.
func TestZeroOptions(t *testing.T) {
	t.Setenv("DOCKER_HOST", needEngine(t))
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	p, err := docker.New(docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{Image: busybox})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(t.Context(), atoll.RemoveVolumes())
	if err := atoll.WriteFile(t.Context(), sb, "f", []byte("through the guest"), 0o600); err != nil {
		t.Error(err)
	}
	if out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"cat", "f"}}); err != nil || string(out) != "through the guest" {
		t.Errorf("cat: %q, %v", out, err)
	}
	if left, err := filepath.Glob(filepath.Join(state, "atoll", "docker", "*")); err != nil || !strings.Contains(strings.Join(left, " "), "locks") {
		t.Errorf("the directory has %q, %v", left, err)
	}
}
