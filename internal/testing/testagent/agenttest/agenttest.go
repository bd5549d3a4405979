// Package agenttest builds the test agent, internal/testing/testagent, for tests that run it.
package agenttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// program is the import path of the test agent.
const program = "github.com/seed46cd37a8/atoll/internal/testing/testagent"

// build builds the test agent once.
var build = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "atoll-testagent")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "testagent")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, program)
	cmd.Env = slices.Concat(os.Environ(), []string{"CGO_ENABLED=0"})
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %w\n%s", program, err, out)
	}
	return os.ReadFile(file)
})

// Program returns the test agent, a static program for this machine, to run in sandboxes. The first
// call takes seconds to build it. The caller must not change the slice. Without a go command, Program
// skips the test.
func Program(t testing.TB) []byte {
	t.Helper()
	data, err := build()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("building the test agent needs the go command")
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Path returns the path of the test agent on this machine. The file is called claude and is alone in
// its directory, which can be added to PATH. It is removed when the test ends.
func Path(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "claude")
	data := Program(t)
	// A process that another test starts meanwhile would inherit the open file, and Exec
	// would fail with ETXTBSY until that process has closed it.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
