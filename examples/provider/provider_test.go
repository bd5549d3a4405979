//go:build linux

// Package provider_test runs the conformance suite against the examples of providers.
package provider_test

import (
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

// The groups of promises without those that take long: the command atoll provider test runs all. One program
// keeps all promises of a shared group; the others run in parallel, with a program each.
var (
	shared   = []string{"exec", "output", "truth"}
	parallel = []string{"birth", "time", "tree", "watch", "errors"}
)

// runSuite runs the suite against the provider of a program.
func runSuite(t *testing.T, name, program string) {
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		p, err := plugin.Open(t.Context(), plugin.Options{Name: name, Path: program, StateDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, providertest.Only(slices.Concat(shared, parallel)...), providertest.Shared(shared...), providertest.Beside(6, parallel...))
}

func TestGo(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it runs the conformance suite")
	}
	program := filepath.Join(t.TempDir(), "atoll-gohost")
	build := exec.Command("go", "build", "-o", program, "./go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	runSuite(t, "gohost", program)
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
	runSuite(t, "pyhost", program)
}
