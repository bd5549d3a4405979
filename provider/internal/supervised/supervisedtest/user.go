//go:build linux

package supervisedtest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Stranger is a uid that no machine knows.
const Stranger = 54321

// RunAsUser runs tests of this binary as an ordinary user. Their environment has the names in programs, with the paths of copies of
// those programs: the user may not be able to reach the originals, nor to build any.
func RunAsUser(t *testing.T, tests string, programs map[string]string) {
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
	self, tmp := filepath.Join(dir, "tests"), filepath.Join(dir, "tmp")
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp, "CI=" + os.Getenv("CI")}
	err = errors.Join(CopyProgram(self, "/proc/self/exe"), os.Mkdir(tmp, 0o700), os.Chown(tmp, Stranger, Stranger), os.Chmod(dir, 0o755))
	for name, program := range programs {
		copied := filepath.Join(dir, name)
		env = append(env, name+"="+copied)
		err = errors.Join(err, CopyProgram(copied, program))
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(3*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.run", tests, "-test.v", "-test.short")
	cmd.Dir = dir
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Stranger, Gid: Stranger}}
	out, err := cmd.CombinedOutput()
	t.Logf("%d tests passed as uid %d", strings.Count(string(out), "\n--- PASS"), Stranger)
	if err != nil {
		t.Fatalf("as uid %d: %v\n%s\nof all this output:\n%s", Stranger, err, findFailures(string(out)), out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "--- SKIP") || strings.Contains(line, "does not work here") || strings.Contains(line, "needs ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// findFailures returns what the tests said that failed, without the others' output.
func findFailures(output string) string {
	failed := map[string]bool{}
	for line := range strings.Lines(output) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			failed[strings.Fields(rest)[0]] = true
		}
	}
	var found strings.Builder
	name := ""
	for line := range strings.Lines(output) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "===" {
			name = words[2]
		}
		if failed[name] {
			found.WriteString(line)
		}
	}
	return found.String()
}
