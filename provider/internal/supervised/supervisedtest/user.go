//go:build linux

package supervisedtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// stranger is a uid that no machine knows.
const stranger = 54321

// RunAsUser runs tests of this binary as an ordinary user. The variable engineVar gives them a copy of the engine.
func RunAsUser(t *testing.T, tests, engineVar, engine string) {
	t.Helper()
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
	self, copied, tmp := filepath.Join(dir, "tests"), filepath.Join(dir, "engine"), filepath.Join(dir, "tmp") // the user may not be able to reach the originals
	for _, step := range []func() error{
		func() error { return CopyProgram(self, "/proc/self/exe") },
		func() error { return CopyProgram(copied, engine) },
		func() error { return os.Mkdir(tmp, 0o700) },
		func() error { return os.Chown(tmp, stranger, stranger) },
		func() error { return os.Chmod(dir, 0o755) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(3*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.run", tests, "-test.v", "-test.short")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp, "CI=" + os.Getenv("CI"), engineVar + "=" + copied}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := cmd.CombinedOutput()
	t.Logf("%d tests passed as uid %d", strings.Count(string(out), "\n--- PASS"), stranger)
	if err != nil {
		t.Fatalf("as uid %d: %v\n%s", stranger, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "--- SKIP") || strings.Contains(line, "does not work here") || strings.Contains(line, "needs ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
