//go:build linux

package umount

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// runHelper runs this program as gVisor's helper, in a mount namespace of its own, with input on descriptor 3.
func runHelper(t *testing.T, input string) (string, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString(input); err != nil {
		t.Fatal(err)
	}
	w.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"/proc/self/exe", "umount", "--sync-fd=3", "/proc"}, ExtraFiles: []*os.File{r},
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}, // Unshareflags makes mounts private
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestHelper(t *testing.T) {
	testenv.Need(t, testenv.Root)
	if out, err := runHelper(t, "x"); err != nil || out != "" {
		t.Errorf("it printed %q, %v", out, err)
	}
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Fatalf("it unmounted /proc for others: %v", err)
	}
	// The sentry has died.
	if out, err := runHelper(t, ""); err == nil || !strings.Contains(out, "sync descriptor") {
		t.Errorf("without a byte: %q, %v", out, err)
	}
}
