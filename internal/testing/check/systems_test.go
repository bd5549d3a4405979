package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The check finds the errors that only another system has, in packages and in tests.
func TestOtherSystems(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":       "module example\n\ngo 1.26\n",
		"all.go":       "package example\n\nimport \"os\"\n\nfunc all() { only(); os.Getpid() }\n",
		"unix.go":      "//go:build unix\n\npackage example\n\nfunc only() {}\n",
		"unix_test.go": "//go:build !linux\n\npackage example\n\nfunc init() { missing() }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for system, want := range map[string]int{"linux": 0, "darwin": 1, "windows": 3} { // the test's package repeats the package's
		n, err := checkSystem(t.Context(), dir, system)
		if err != nil || n != want {
			t.Errorf("%s: %d errors (%v), want %d", system, n, err, want)
		}
	}
}
