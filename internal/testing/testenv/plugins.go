package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Plugins builds the programs atoll-NAME from the current source and puts them first into PATH for the
// test.
func Plugins(t testing.TB, names ...string) {
	t.Helper()
	t.Setenv("PATH", OnlyPlugins(t, names...)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// OnlyPlugins builds the programs atoll-NAME from the current source and returns a directory with only
// these programs.
func OnlyPlugins(t testing.TB, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "atoll-"+name), "github.com/seed46cd37a8/atoll/cmd/atoll-"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build atoll-%s: %v: %s", name, err, out)
		}
	}
	return dir
}
