//go:build linux

package native_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/native"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestConformance(t *testing.T) {
	needNative(t)
	count := 40
	if testenv.RunAll() {
		count = 100
	}
	providertest.Run(t, openProvider, append(append(suiteOptions(), sharedGroups, providertest.Count(count), providertest.FailSteps(openStepwise)), imageOptions(t)...)...)
}

// sharedGroups are the groups of promises that can share a sandbox.
var sharedGroups = providertest.Shared("exec", "output", "time", "tree", "tty", "files", "sub", "dial", "pause", "network", "escape")

func BenchmarkNative(b *testing.B) {
	needNative(b)
	providertest.Bench(b, func(b *testing.B) atoll.Provider { return openProvider(b) }, suiteOptions()...)
}

func suiteOptions() []providertest.Option {
	return []providertest.Option{
		providertest.Slow(3),
		providertest.Leaks(listLeaks),
		providertest.Reopen(reopen),
		providertest.OtherProcess(makeElsewhere),
		providertest.CrashSandbox(crashSandbox),
	}
}

// reopen returns another provider over the state of p.
func reopen(t *testing.T, p atoll.Provider) atoll.Provider {
	again, err := native.New(optionsOf(p))
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// openedOptions holds the options of each provider, to open its state again: native.Options
// by *native.Provider.
var openedOptions sync.Map

func optionsOf(p atoll.Provider) native.Options {
	opts, _ := openedOptions.Load(p.(*native.Provider))
	return opts.(native.Options)
}

// openProvider makes a provider over directories of its own.
func openProvider[T testing.TB](t T) atoll.Provider {
	opts := freshOptions(t)
	opts.Stock = 2
	p, err := native.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	openedOptions.Store(p, opts)
	return p
}

// freshOptions returns options for a provider over directories of its own, which must be
// empty again in the end.
func freshOptions(t testing.TB) native.Options {
	opts := native.Options{
		Dir: filepath.Join(t.TempDir(), "state"), RunDir: supervisedtest.ShortDir(t), Helper: helperPath(t), Cgroup: cgroupPrefix, Spare: true,
	}
	t.Cleanup(func() { placesOf(opts).CheckEmpty(t) })
	return opts
}

// cgroupPrefix begins the names of this process's cgroups: other tests run at the same
// time.
var cgroupPrefix = fmt.Sprintf("atoll-test-%d-", os.Getpid())

// needNative skips where these sandboxes do not work, with the reason.
func needNative(t testing.TB) {
	t.Helper()
	helperPath(t) // or the test fails
	if probe := probeOnce(); !probe.OK {
		t.Skipf("native sandboxes do not work here: %s; %s", probe.Reason, probe.Fix)
	}
}

var probeOnce = sync.OnceValue(func() atoll.Probe {
	dir, err := os.MkdirTemp("", "atoll-probe")
	if err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	defer os.RemoveAll(dir)
	helper, _ := buildEngine() // its error has failed the test
	p, err := native.New(native.Options{Dir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Helper: helper})
	if err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	defer p.Close()
	return atoll.ProbeProvider(context.Background(), p)
})

// helperPath returns the program cmd/atoll-native, which make build puts into atoll.
func helperPath(t testing.TB) string {
	out, err := buildEngine()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// engineVar has the path of an engine program for a test program that cannot build one.
const engineVar = "ATOLL_TEST_NATIVE"

var buildEngine = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(engineVar); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "atoll-native")
	if err != nil {
		return "", err
	}
	helperDir = dir
	path := filepath.Join(dir, "atoll-native")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "../../cmd/atoll-native").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the engine: %w\n%s", err, out)
	}
	return path, nil
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
