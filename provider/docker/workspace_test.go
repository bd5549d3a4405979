//go:build linux

package docker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// A cloned workspace gets into a container through its guest, before the main process starts and
// with the sandbox's user as owner. A local directory is mounted.
func TestWorkspace(t *testing.T) {
	needEngine(t)
	testenv.Need(t, testenv.Program("git", "git"))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "run"), []byte("#!/bin/sh\nid -u; stat -c '%u %a' run .git\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "x"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	p := workspace.New(open(t), workspace.Options{Dir: t.TempDir()})
	defer p.Close()
	for _, tt := range []struct {
		spec atoll.Spec
		want string
	}{
		{atoll.Spec{User: "1234:2345", Workspace: atoll.WorkspaceRef{Source: "file://" + dir}}, "1234\n1234 755\n1234 755\n"},
		{atoll.Spec{Workspace: atoll.WorkspaceRef{Source: dir, ReadOnly: true}}, "0\n0 755\n0 755\n"},
	} {
		tt.spec.Cmd = []string{"sh", "-c", "./run; sleep 600"}
		sb, err := p.Create(t.Context(), &tt.spec)
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"./run"}})
		if err != nil || string(out) != tt.want {
			t.Errorf("the script printed %q, %v, want %q", out, err, tt.want)
		}
		err = atoll.WriteFile(t.Context(), sb, "new", []byte("x"), 0)
		if readOnly := tt.spec.Workspace.ReadOnly; (err != nil) != readOnly {
			t.Errorf("WriteFile, read-only %v: %v", readOnly, err)
		}
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a write to the clone has changed the directory")
	}
}
