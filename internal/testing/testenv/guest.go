package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Guest builds the guest's program from the current source, once in a test program, and returns it.
var Guest = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "atoll-guest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "github.com/seed46cd37a8/atoll/cmd/atoll-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the guest: %w: %s", err, out)
	}
	return os.ReadFile(path)
})
