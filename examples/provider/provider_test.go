//go:build linux

// Package provider_test runs the conformance suite against the examples of providers.
package provider_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/plugin"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// shared are the groups whose promises one program can keep together, in each test.
var shared = []string{"exec", "output", "caps"}

// runSuite runs the shared groups and some others against the provider of a program. The command atoll
// provider test runs all groups.
func runSuite(t *testing.T, name, program string, groups ...string) {
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		p, err := plugin.Open(t.Context(), plugin.Options{Name: name, Path: program, StateDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, providertest.Only(slices.Concat(shared, groups)...), providertest.Shared(shared...), providertest.Parallel(6, groups...))
}

func TestGo(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it runs the conformance suite")
	}
	program := filepath.Join(t.TempDir(), "atoll-gohost")
	build := exec.Command("go", "build", "-o", program, "./atoll-gohost")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	runSuite(t, "gohost", program, "create", "time", "tree", "watch", "remove", "errors")
}

func TestPython(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it runs the conformance suite")
	}
	testenv.Need(t, testenv.Program("python3", "python3"))
	program, err := filepath.Abs("python/atoll-pyhost")
	if err != nil {
		t.Fatal(err)
	}
	runSuite(t, "pyhost", program, "create", "tree")
}

// docs/provider.md says that a backend takes less than 200 lines.
func TestLength(t *testing.T) {
	for _, path := range []string{"atoll-gohost/main.go", "python/atoll-pyhost"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n >= 200 {
			t.Errorf("%s has %d lines", path, n)
		}
	}
}
