//go:build linux

package supervisedtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	runAs(t, tests, programs, "")
}

// subordinates is a shell script that gives the user a name and subordinate ids, in copies of the files of /etc that a mount namespace
// has, and then runs a command as that user.
var subordinates = strings.NewReplacer("ID", strconv.Itoa(Stranger)).Replace(`
	mount --make-rprivate / || exit
	for f in passwd group subuid subgid; do { cat /etc/$f; true; } >"$0/$f" 2>/dev/null; touch /etc/$f || exit; done
	echo "stranger:x:ID:ID::$0/tmp:/bin/sh" >>"$0/passwd"; echo "stranger:x:ID:" >>"$0/group"
	echo "stranger:2000000:65536" | tee -a "$0/subuid" >>"$0/subgid"
	for f in passwd group subuid subgid; do mount --bind "$0/$f" /etc/$f || exit; done
	`) + becomeStranger

// RunWithSubordinates is RunAsUser for a user with subordinate ids.
func RunWithSubordinates(t *testing.T, tests string, programs map[string]string) {
	t.Helper()
	testenv.Need(t, testenv.Program("newuidmap", "uidmap"))
	runAs(t, tests, programs, subordinates)
}

// RunInGroups is RunAsUser for a user who owns the cgroups that the tests run in: one in each hierarchy. Name is that of the cgroups.
func RunInGroups(t *testing.T, name, tests string, programs map[string]string) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.Cgroups)
	const root = "/sys/fs/cgroup"
	hierarchies := []string{root}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil { // v1
		hierarchies = nil
		for _, controller := range []string{"memory", "cpu", "cpuacct", "pids", "freezer"} {
			hierarchies = append(hierarchies, filepath.Join(root, controller))
		}
	}
	t.Cleanup(func() {
		if err := testenv.DropCgroups(name, time.Second); err != nil {
			t.Error(err)
		}
	})
	script := "" // moves itself into the groups
	for _, hierarchy := range hierarchies {
		dir := filepath.Join(hierarchy, name)
		if err := os.MkdirAll(dir, 0o755); err != nil { // cpu and cpuacct may be one
			t.Fatal(err)
		}
		for _, file := range []string{"", "cgroup.procs", "tasks", "cgroup.subtree_control", "cgroup.threads"} {
			if err := os.Chown(filepath.Join(dir, file), Stranger, Stranger); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		script += "echo $$ >" + dir + "/cgroup.procs || exit\n"
	}
	runAs(t, tests, programs, script+becomeStranger)
}

// becomeStranger is the line of a shell script that runs the rest of its arguments as the user.
var becomeStranger = fmt.Sprintf("exec setpriv --reuid %d --regid %d --clear-groups --inh-caps=-all \"$@\"", Stranger, Stranger)

// runAs runs tests as an ordinary user, which the script makes, unless it is "".
func runAs(t *testing.T, tests string, programs map[string]string, script string) {
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
	args := []string{self, "-test.run", tests, "-test.v", "-test.short"}
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Stranger, Gid: Stranger}}
	if script != "" {
		args = append([]string{"/bin/sh", "-c", script, dir}, args...)
		attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = env
	cmd.SysProcAttr = attr
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
