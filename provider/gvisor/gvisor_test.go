//go:build linux

package gvisor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestConformance(t *testing.T) {
	need(t)
	providertest.Run(t, open, append(append(options(), providertest.Count(100), providertest.Steps(stepwise)), pullable(t)...)...)
}

func BenchmarkGVisor(b *testing.B) {
	need(b)
	providertest.Bench(b, func(b *testing.B) atoll.Provider { return open(b) }, options()...)
}

func options() []providertest.Option {
	return []providertest.Option{
		providertest.Slow(3),
		providertest.Leaks(leaks),
		providertest.Reopen(reopened),
		providertest.Elsewhere(elsewhere),
		providertest.Crash(crash),
		providertest.Debian(func(t *testing.T) string { return testimage.Serve(t).Push("debian:1", testimage.Debian(t)) }),
	}
}

// reopened is another provider over the state of p.
func reopened(t *testing.T, p atoll.Provider) atoll.Provider {
	again, err := gvisor.New(optionsOf(p))
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// opened remembers the options of each provider, for those who open it again.
// They are gvisor.Options by *gvisor.Provider.
var opened sync.Map

func optionsOf(p atoll.Provider) gvisor.Options {
	opts, _ := opened.Load(p.(*gvisor.Provider))
	return opts.(gvisor.Options)
}

// open makes a provider over directories of its own.
func open[T testing.TB](t T) atoll.Provider {
	opts := fresh(t)
	p, err := gvisor.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	opened.Store(p, opts)
	return p
}

// fresh returns options for a provider over directories of its own, which must
// be empty again in the end.
func fresh(t testing.TB) gvisor.Options {
	opts := gvisor.Options{
		Dir: filepath.Join(t.TempDir(), "state"), RunDir: runDir(t), Helper: helper(t), Cgroup: groups, Spare: true,
		Debug: os.Getenv("ATOLL_TEST_GVISOR_DEBUG") != "",
	}
	t.Cleanup(func() { nothingLeft(t, opts) })
	return opts
}

// nothingLeft checks that the directories in opts are empty.
func nothingLeft(t testing.TB, opts gvisor.Options) {
	t.Helper()
	if left := leftOnDisk(t, opts); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, " "))
	}
}

// leftOnDisk lists what is in the directories in opts.
func leftOnDisk(t testing.TB, opts gvisor.Options) (left []string) {
	t.Helper()
	dirs := []string{opts.RunDir}
	for _, sub := range []string{"sandboxes", "records", "volumes/default", "names/default", "snapshots"} {
		dirs = append(dirs, filepath.Join(opts.Dir, sub))
	}
	for _, dir := range dirs {
		for _, e := range entries(t, dir) {
			left = append(left, filepath.Join(dir, e))
		}
	}
	return left
}

// groups is what the names of this process's cgroups begin with: other tests
// run at the same time.
var groups = fmt.Sprintf("atoll-test-%d-", os.Getpid())

// runDir is a short directory: sockets lie in it.
func runDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "atoll")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func entries(t testing.TB, dir string) []string {
	list, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// need skips where gVisor cannot work, with the reason; in CI that is a failure.
func need(t testing.TB) {
	p, err := gvisor.New(gvisor.Options{Dir: filepath.Join(t.TempDir(), "state"), RunDir: t.TempDir(), Helper: helper(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if probe := atoll.ProbeProvider(t.Context(), p); !probe.OK {
		t.Skipf("gVisor does not work here: %s; %s", probe.Reason, probe.Fix)
	}
}

// helper is the binary to run as supervisor: this test, if it is static, else one
// built for it, as the race detector needs cgo and gVisor does not bear it.
func helper(t testing.TB) string {
	out, err := buildHelper()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var buildHelper = sync.OnceValues(func() (string, error) {
	if gvisor.Static("/proc/self/exe") == nil {
		return "", nil
	}
	dir, err := os.MkdirTemp("", "atoll-helper")
	if err != nil {
		return "", err
	}
	helperDir = dir
	path := filepath.Join(dir, "atoll")
	cmd := exec.Command("go", "build", "-o", path, "github.com/seed46cd37a8/atoll/cmd/atoll")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build helper: %w\n%s", err, out)
	}
	return path, nil
})

var helperDir string

func TestMain(m *testing.M) {
	runProgram()
	code := m.Run()
	if helperDir != "" {
		os.RemoveAll(helperDir)
	}
	os.Exit(code)
}

// leaks lists what gVisor sandboxes have on this machine besides what the suite
// itself looks for, which includes their processes.
func leaks(t *testing.T) []string { return cgroups(t, groups) }

// cgroups lists those whose names begin with prefix.
func cgroups(t testing.TB, prefix string) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + prefix + "*", "/sys/fs/cgroup/*/" + prefix + "*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				list = append(list, "cgroup "+path)
			}
		}
	}
	return list
}
