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

// program is the package of the test agent.
const program = "github.com/seed46cd37a8/atoll/internal/testing/testagent"

// build builds it, once.
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

// Program returns the test agent: a static program for this machine, to be put into
// sandboxes. It is built once, which takes seconds, and must not be changed. Without a go
// command the test is skipped.
func Program(t testing.TB) []byte {
	t.Helper()
	data, err := build()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no go command to build the test agent with")
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Path returns the path of the test agent on this machine. The file is called claude, is
// alone in its directory, so that this can be put in PATH, and is removed when the test
// ends.
func Path(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "claude")
	data := Program(t)
	// A process that another test starts now would inherit the file, open for writing,
	// and nobody could run it for that time.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
