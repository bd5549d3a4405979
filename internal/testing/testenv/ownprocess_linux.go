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

// apartVar is a variable with the name of the test that a process was started for.
const apartVar = "ATOLL_TEST_APART"

// InOwnProcess is for tests that mount something, which other tests would take for a leak. It runs the test
// again in a process with its own mount namespace, and the further namespaces of the clone flags, and returns true there. In the first process it
// returns false afterwards, and the test must return.
func InOwnProcess(t *testing.T, namespaces ...uintptr) bool {
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
	for _, flag := range namespaces {
		cmd.SysProcAttr.Cloneflags |= flag
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM):
		t.Skipf("needs a new mount namespace: %v", err)
	case err != nil:
		t.Errorf("in a process of its own: %v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name())):
		t.Skipf("in a process of its own:\n%s", out)
	case !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Errorf("the test did not run in a process of its own:\n%s", out)
	}
	return false
}
