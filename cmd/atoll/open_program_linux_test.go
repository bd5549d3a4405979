package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	_ "github.com/seed46cd37a8/atoll/provider/auto"
)

// A Go program without a server uses the program atoll, which ends with it.
func TestOpenByProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "atoll")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ATOLL_PROGRAM", program)
	t.Setenv("ATOLL_STATE_DIR", t.TempDir())
	t.Setenv("ATOLL_PROVIDER", "local")
	t.Setenv("ATOLL_PROVIDERS", "local")
	p, err := atoll.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", "echo $((6*7))"}}); err != nil || string(out) != "42\n" {
		t.Errorf("sh: %q, %v", out, err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
