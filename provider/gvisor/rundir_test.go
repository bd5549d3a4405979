//go:build linux

package gvisor_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A user who makes, in advance, the directory for the sockets of another user's sandboxes
// gets none of them.
func TestRunDirectoryOfAnother(t *testing.T) {
	testenv.Need(t, testenv.Root)
	needGVisor(t)
	dir, err := os.MkdirTemp("/tmp", "atoll-user")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	self, engine, tmp, home := filepath.Join(dir, "tests"), filepath.Join(dir, "engine"), filepath.Join(dir, "tmp"), filepath.Join(dir, "home")
	base := filepath.Join(tmp, "atoll-"+strconv.Itoa(supervisedtest.Stranger))
	for _, step := range []func() error{
		func() error { return os.Chmod(dir, 0o755) },
		func() error { return supervisedtest.CopyProgram(self, "/proc/self/exe") },
		func() error { return supervisedtest.CopyProgram(engine, helperPath(t)) },
		func() error { return os.Mkdir(home, 0o700) },
		func() error { return os.Chown(home, supervisedtest.Stranger, supervisedtest.Stranger) },
		func() error { return os.Mkdir(tmp, 0o700) },
		func() error { return os.Chmod(tmp, 0o777|os.ModeSticky) },
		func() error { return os.Mkdir(base, 0o700) },
		func() error { return os.Chown(base, supervisedtest.Stranger+1, supervisedtest.Stranger+1) },
		func() error { return os.Chmod(base, 0o777) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	create := func() (string, error) {
		cmd := exec.Command(self, filepath.Join(home, "state"), "", engine, cgroupPrefix, atoll.NewID())
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, supervisedtest.ProgramEnv + "=once"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: supervisedtest.Stranger, Gid: supervisedtest.Stranger}}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		return stderr.String(), err
	}
	says, err := create()
	if err == nil {
		t.Fatal("a sandbox was made in a directory of another user's")
	}
	for _, want := range []string{string(atoll.ErrDenied), base, "belongs to user " + strconv.Itoa(supervisedtest.Stranger+1), "XDG_RUNTIME_DIR"} {
		if !strings.Contains(says, want) {
			t.Errorf("%q does not say %q", says, want)
		}
	}
	if left := supervisedtest.ListDir(t, base); len(left) > 0 {
		t.Errorf("made in the directory of another: %v", left)
	}
	if err := os.Remove(base); err != nil {
		t.Fatal(err)
	}
	if says, err = create(); err != nil && !strings.Contains(says, string(atoll.ErrUnavailable)) { // where users cannot have namespaces
		t.Errorf("without it: %v: %s", err, says)
	}
	for _, dir := range []string{filepath.Join(home, "state", "records"), filepath.Join(home, "state", "sandboxes"), tmp} {
		if left := supervisedtest.ListDir(t, dir); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
}

// onceProgram makes a sandbox with the id args[0] and removes it.
func onceProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Create(context.Background(), &atoll.Spec{ID: args[0]})
	if err != nil {
		return fmt.Errorf("%s: %w", atoll.KindOf(err), err)
	}
	return sb.Remove(context.Background(), atoll.RemoveVolumes())
}
