package testenv

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// apartVar holds the name of the test that a process was started for.
const apartVar = "ATOLL_TEST_APART"

// Apart is for a test that mounts something, which others would take for their own
// leak: it runs the test once more in a process of its own, whose mounts nobody else
// sees, and there it returns true. Where it returns false, that is done.
func Apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv(apartVar) == t.Name() {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	Need(t, Root)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), apartVar+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM):
		t.Skipf("no mounts of its own can be had: %v", err)
	case err != nil:
		t.Errorf("in a process of its own: %v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name())):
		t.Skipf("in a process of its own:\n%s", out)
	case !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Errorf("it did not run in a process of its own:\n%s", out)
	}
	return false
}
