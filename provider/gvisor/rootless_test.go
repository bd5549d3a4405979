//go:build linux

package gvisor_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// stranger is a uid that no machine knows.
const stranger = 54321

// asUser is the list of tests that an ordinary user runs as well.
const asUser = "^(TestAsUser|TestHostIsOutOfSight|TestRootInsideIsPowerless|TestReadOnlyMount|TestPlacesOfMounts|TestLinksAreThoseOfTheSandbox|TestKilledFromOutside|TestStopKeepsFiles|TestStopKeepsMuchWork|TestTwoProcessesAtOnce|TestSnapshotForks|TestImageIsDirectory|TestImageConfiguration|TestTerminalKeys|TestProbe|TestHelperThatCannotServe)$"

// TestRootless runs the most important of these tests as an ordinary user.
func TestRootless(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this is an ordinary user already")
	}
	if testing.Short() {
		t.Skip("many tests once more, as another user: too long for -short")
	}
	dir, err := os.MkdirTemp("/tmp", "atoll-user")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	self, engine := filepath.Join(dir, "tests"), filepath.Join(dir, "engine") // the user may not be able to reach the originals
	for _, step := range []func() error{
		func() error { return copyFile(self, "/proc/self/exe") },
		func() error { return copyFile(engine, helperPath(t)) },
		func() error { return os.Mkdir(filepath.Join(dir, "tmp"), 0o700) },
		func() error { return os.Chown(filepath.Join(dir, "tmp"), stranger, stranger) },
		func() error { return os.Chmod(dir, 0o755) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(3*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.run", asUser, "-test.v", "-test.short")
	cmd.Dir = dir
	tmp := filepath.Join(dir, "tmp")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp, "CI=" + os.Getenv("CI"), engineVar + "=" + engine}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := cmd.CombinedOutput()
	passed := strings.Count(string(out), "\n--- PASS")
	t.Logf("%d tests passed as uid %d", passed, stranger)
	if err != nil {
		t.Fatalf("as uid %d: %v\n%s", stranger, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "--- SKIP") || strings.Contains(line, "does not work here") || strings.Contains(line, "needs ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}

// An ordinary user's sandboxes can do what the user can, and their Caps tell the rest.
func TestAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("this is root")
	}
	l := newLab(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	sb := l.create(atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/shared"}}})
	if got := l.sh(sb, "id -u; cat /shared/file; echo new > /shared/new; echo work > /work/file"); got != "0\nmine" {
		t.Errorf("inside: %q", got)
	}
	for _, path := range []string{filepath.Join(dir, "new"), filepath.Join(l.opts.Dir, "volumes", "default", "data-"+sb.ID(), "file")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Geteuid() {
			t.Errorf("%s belongs to %d", path, uid)
		}
	}
	caps := l.Info().Caps
	if caps.Users {
		t.Error("Caps.Users")
	}
	for what, spec := range map[string]atoll.Spec{
		"user": {User: "1000"},
	} {
		_, err := l.Create(l.ctx(), &spec)
		wantKind(t, what, err, atoll.ErrUnsupported, "root")
	}
	_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"true"}, User: "1000"})
	wantKind(t, "exec as another user", err, atoll.ErrUnsupported, "root")
	if !caps.MemoryLimit {
		_, err := l.Create(l.ctx(), &atoll.Spec{Resources: atoll.Resources{Memory: 1 << 30}})
		wantKind(t, "memory limit", err, atoll.ErrUnsupported, "memory")
	}
	if !caps.CPULimit {
		_, err := l.Create(l.ctx(), &atoll.Spec{Resources: atoll.Resources{CPUs: 1}})
		wantKind(t, "CPU limit", err, atoll.ErrUnsupported, "CPU")
	}
	_, err = l.Create(l.ctx(), &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/etc/shadow", Target: "/x"}}})
	wantKind(t, "a file of root's", err, atoll.ErrDenied, "/etc/shadow")
}
