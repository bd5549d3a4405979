package dagger_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs/dagger"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// cliVar makes the test binary wait for the CLI at that path.
const cliVar = "ATOLL_TEST_DAGGER_CLI"

// An unconnected CLI ends with the process that started it, however that ends.
func TestCLIEndsWithUs(t *testing.T) {
	if cli := os.Getenv(cliVar); cli != "" {
		_, err := dagger.New(dagger.Options{CLI: cli, Guest: guestHeader, Dir: filepath.Dir(cli), Patience: testenv.Scale(time.Minute)}).Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"}))
		t.Fatal(err)
	}
	dir := t.TempDir()
	cli, started := filepath.Join(dir, "cli"), filepath.Join(dir, "started")
	if err := os.WriteFile(cli, fmt.Appendf(nil, "#!/bin/sh\necho $$ >%s\nexec sleep 1000\n", started), 0o755); err != nil {
		t.Fatal(err)
	}
	us := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	us.Env = append(os.Environ(), cliVar+"="+cli)
	if err := us.Start(); err != nil {
		t.Fatal(err)
	}
	var text string
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); !strings.HasSuffix(text, "\n") && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		read, _ := os.ReadFile(started)
		text = string(read)
	}
	_ = us.Process.Kill()
	_ = us.Wait() // killed by the signal
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("the CLI, %d, still runs", pid)
		}
	}
}
