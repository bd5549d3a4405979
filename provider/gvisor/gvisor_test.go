//go:build linux

package gvisor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestConformance(t *testing.T) {
	needGVisor(t)
	count := 40
	if testenv.RunAll() {
		count = 100
	}
	providertest.Run(t, openProvider, append(append(suiteOptions(), sharedGroups, providertest.Count(count), providertest.FailSteps(openStepwise)), pullableImage(t)...)...)
}

// sharedGroups are the groups of promises that can share a sandbox.
var sharedGroups = providertest.Shared("exec", "output", "time", "tree", "tty", "files", "sub", "dial", "pause", "network", "escape")

func BenchmarkGVisor(b *testing.B) {
	needGVisor(b)
	providertest.Bench(b, func(b *testing.B) atoll.Provider { return openProvider(b) }, suiteOptions()...)
}

func suiteOptions() []providertest.Option {
	return []providertest.Option{
		providertest.Slow(3),
		providertest.Leaks(listLeaks),
		providertest.Reopen(reopen),
		providertest.OtherProcess(makeElsewhere),
		providertest.CrashSandbox(crashSandbox),
		providertest.Debian(func(t *testing.T) string { return testimage.Serve(t).Push("debian:1", testimage.Debian(t)) }),
	}
}

// reopen returns another provider over the state of p.
func reopen(t *testing.T, p atoll.Provider) atoll.Provider {
	again, err := gvisor.New(optionsOf(p))
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// openedOptions holds the options of each provider, to open its state again: gvisor.Options
// by *gvisor.Provider.
var openedOptions sync.Map

func optionsOf(p atoll.Provider) gvisor.Options {
	opts, _ := openedOptions.Load(p.(*gvisor.Provider))
	return opts.(gvisor.Options)
}

// openProvider makes a provider over directories of its own.
func openProvider[T testing.TB](t T) atoll.Provider {
	opts := freshOptions(t)
	opts.Stock = 2
	p, err := gvisor.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	openedOptions.Store(p, opts)
	return p
}

// freshOptions returns options for a provider over directories of its own, which must be
// empty again in the end.
func freshOptions(t testing.TB) gvisor.Options {
	opts := gvisor.Options{
		Dir: filepath.Join(t.TempDir(), "state"), RunDir: supervisedtest.ShortDir(t), Helper: helperPath(t), Cgroup: cgroupPrefix, Spare: true,
		Debug: os.Getenv("ATOLL_TEST_GVISOR_DEBUG") != "",
	}
	t.Cleanup(func() { placesOf(opts).CheckEmpty(t) })
	return opts
}

// cgroupPrefix begins the names of this process's cgroups: other tests run at the same
// time.
var cgroupPrefix = fmt.Sprintf("atoll-test-%d-", os.Getpid())

// needGVisor skips where gVisor cannot work, with the reason; in CI that is a failure.
func needGVisor(t testing.TB) {
	p, err := gvisor.New(gvisor.Options{Dir: filepath.Join(t.TempDir(), "state"), RunDir: t.TempDir(), Helper: helperPath(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if probe := atoll.ProbeProvider(t.Context(), p); !probe.OK {
		t.Skipf("gVisor does not work here: %s; %s", probe.Reason, probe.Fix)
	}
}

// helperPath returns the engine program, which make build puts into atoll. Scripts of cmd/atoll have the other kind of
// helper, a program that is its own engine.
func helperPath(t testing.TB) string {
	out, err := buildEngine()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// engineVar has the path of an engine program for a test program that cannot build one.
const engineVar = "ATOLL_TEST_ENGINE"

var buildEngine = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(engineVar); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "atoll-engine")
	if err != nil {
		return "", err
	}
	helperDir = dir
	if out, err := exec.Command("make", "-C", "../..", "engine", "BIN="+dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the engine: %w\n%s", err, out)
	}
	return filepath.Join(dir, "atoll-engine"), nil
})

var helperDir string

func TestMain(m *testing.M) {
	supervisedtest.RunProgram(programs)
	code := m.Run()
	if helperDir != "" {
		os.RemoveAll(helperDir)
	}
	os.Exit(code)
}

// listLeaks lists the sandboxes' cgroups on this machine. The suite itself looks for other
// leaks, such as processes.
func listLeaks(t *testing.T) []string { return supervisedtest.ListCgroups(t, cgroupPrefix) }

func TestInterpreters(t *testing.T) {
	p := openProvider(t)
	defer p.Close()
	providertest.CheckInterpreters(t, p)
}
