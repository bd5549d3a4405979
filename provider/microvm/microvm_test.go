//go:build linux

package microvm_test

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakevmm"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm/qemu"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/provider/microvm/internal/vmengine"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// An emulated machine takes seconds to start, so only CHECK_ALL=1 runs the whole suite. gVisor's run keeps
// the promises of supervisors, and Docker's those of the guest. This one keeps those of a machine: its start, its
// capabilities and its death.
func TestConformance(t *testing.T) {
	need(t)
	besides := leftOut(t)
	if !testenv.RunAll() {
		besides = append(besides, providertest.Only("create", "exec", "crash", "caps"), providertest.WireOnly(), rest)
	}
	providertest.Run(t, maker(fresh).open, maker(fresh).options(besides...)...)
}

// rest gives the reason for the groups that a test leaves out.
var rest = providertest.SkipRest("CHECK_ALL=1 runs it: machines take long")

// A maker returns options for a provider over directories of its own.
type maker func(t testing.TB) microvm.Options

// options returns the options of the suite, and those in besides.
func (fresh maker) options(besides ...providertest.Option) []providertest.Option {
	return append(besides, []providertest.Option{
		providertest.Slow(10),
		providertest.Count(4),
		providertest.Shared("exec", "output", "time", "tree", "tty", "files", "sub", "caps", "dial", "pause", "network", "escape", "exhaustion"),
		providertest.Leaks(leaks),
		providertest.Reopen(reopened),
		providertest.OtherProcess(fresh.elsewhere),
		providertest.CrashSandbox(crash),
		providertest.FailSteps(fresh.stepwise),
		providertest.Debian(func(*testing.T) string { return microvm.DefaultBundle }),
	}...)
}

// slow lists promises that take many seconds with emulated machines, with their seconds on two busy CPUs. Code that
// gVisor or Docker shares keeps them, or they start many machines. Promises of machines alone are not in it.
//
//go:embed testdata/slow.txt
var slow string

// leftOut leaves those out, unless machines are fast here, or all is asked for.
func leftOut(t testing.TB) (list []providertest.Option) {
	t.Helper()
	if accel(t) != "tcg" || testenv.RunAll() {
		return nil
	}
	for line := range strings.Lines(slow) {
		seconds, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		list = append(list, providertest.Except(name, "emulated: it takes "+seconds+" s; CHECK_ALL=1 keeps it"))
	}
	return list
}

// opened remembers the options of each provider, for those who open it again.
// They are microvm.Options by *microvm.Provider.
var opened sync.Map

func optionsOf(p atoll.Provider) microvm.Options {
	opts, _ := opened.Load(p.(*microvm.Provider))
	return opts.(microvm.Options)
}

// open makes a provider over directories of its own.
func (fresh maker) open(t *testing.T) atoll.Provider {
	t.Helper()
	return openWith(t, fresh(t))
}

func openWith(t testing.TB, opts microvm.Options) *microvm.Provider {
	t.Helper()
	p, err := microvm.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	opened.Store(p, opts)
	return p
}

// reopened is another provider over the state of p.
func reopened(t *testing.T, p atoll.Provider) atoll.Provider { return openWith(t, optionsOf(p)) }

// stepwise opens a provider whose steps can fail.
func (fresh maker) stepwise(t *testing.T, step func(name string) error) atoll.Provider {
	return openWith(t, fresh(t).WithStep(step))
}

// fresh returns options for a provider over directories of its own, which must be empty
// again in the end.
func fresh(t testing.TB) microvm.Options { return freshIn(t, t.TempDir()) }

// freshIn is fresh with a directory for what lasts.
func freshIn(t testing.TB, dir string) microvm.Options {
	t.Helper()
	opts := microvm.Options{Dir: filepath.Join(dir, "state"), RunDir: runDir(t), Bundles: bundles(t), Accel: accel(t), Cgroup: groups}
	t.Cleanup(func() {
		if left := leftOnDisk(t, opts); len(left) > 0 {
			t.Errorf("left behind: %s", strings.Join(left, " "))
		}
	})
	return opts
}

// accel returns the accelerator of machines here. It is determined once: if KVM exists and does not
// work, that takes seconds.
func accel(t testing.TB) string {
	t.Helper()
	accelerator.once.Do(func() {
		b, err := bundles(t).Get(microvm.DefaultBundle)
		if err != nil {
			accelerator.err = err
			return
		}
		d, err := qemu.New(t.Context(), qemu.Options{Kernel: b.Path(b.Kernel.File)})
		accelerator.err, accelerator.name = err, "kvm"
		if err == nil && d.Caps().Emulated {
			accelerator.name = "tcg"
		}
	})
	if accelerator.err != nil {
		t.Fatal(accelerator.err)
	}
	return accelerator.name
}

var accelerator struct {
	once sync.Once
	name string
	err  error
}

// bundles is the store that tests boot from.
func bundles(t testing.TB) *bundle.Store {
	t.Helper()
	store, err := bundle.Open(testenv.BundleStore(t), bundle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// leftOnDisk lists what is in the directories in opts.
func leftOnDisk(t testing.TB, opts microvm.Options) (left []string) {
	t.Helper()
	dirs := []string{opts.RunDir}
	for _, sub := range []string{"sandboxes", "records", "volumes/default", "names/default", "snapshots"} {
		dirs = append(dirs, filepath.Join(opts.Dir, sub))
	}
	for _, dir := range dirs {
		list, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		for _, e := range list {
			left = append(left, filepath.Join(dir, e.Name()))
		}
	}
	return left
}

// groups begins the names of this process's cgroups: other tests run at the same time.
var groups = fmt.Sprintf("atoll-test-%d-", os.Getpid())

// runDir is a short directory: sockets lie in it.
func runDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "vm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// need skips where machines cannot work, with the reason.
func need(t testing.TB) {
	t.Helper()
	testenv.Need(t, testenv.Program("qemu-system-x86_64", "qemu-system-x86"), testenv.Program("mke2fs", "e2fsprogs"))
	if testing.Short() {
		t.Skip("-short: machines boot, which takes its time where they are emulated")
	}
	p, err := microvm.New(microvm.Options{Dir: filepath.Join(t.TempDir(), "state"), RunDir: t.TempDir(), Bundles: bundles(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if probe := atoll.ProbeProvider(t.Context(), p); !probe.OK {
		t.Skipf("virtual machines do not work here: %s; %s", probe.Reason, probe.Fix)
	}
}

// leaks lists what machines have on this host besides what the suite itself looks for,
// which includes their processes.
func leaks(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + groups + "*", "/sys/fs/cgroup/*/" + groups + "*"} {
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

// elsewhere makes sandboxes by another process.
func (fresh maker) elsewhere(t *testing.T) (other *exec.Cmd, open func() atoll.Provider) {
	opts := fresh(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other = exec.Command(exe, opts.Dir, opts.RunDir, testenv.BundleStore(t), opts.Cgroup, opts.Driver, opts.Program)
	other.Env = append(os.Environ(), makerEnv+"=1")
	return other, func() atoll.Provider { return openWith(t, opts) }
}

// makerEnv makes this program one that makes a sandbox, and waits to be killed.
const makerEnv = "ATOLL_TEST_MAKER"

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case vmengine.Firecracker:
		os.Exit(fakevmm.Firecracker(os.Args))
	case "vfkit":
		os.Exit(fakevmm.VFKit(os.Args))
	case "jailer":
		os.Exit(fakevmm.Jailer(os.Args))
	}
	if os.Getenv(makerEnv) == "" {
		os.Exit(m.Run())
	}
	if err := makeSandbox(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func makeSandbox(args []string) error {
	store, err := bundle.Open(args[2], bundle.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	opts := microvm.Options{Dir: args[0], RunDir: args[1], Bundles: store, Cgroup: args[3], Driver: args[4], Program: args[5]}
	p, err := microvm.New(opts.WithEmulation(opts.Driver != ""))
	if err != nil {
		return err
	}
	defer p.Close()
	return providertest.CreateAndWait(p, os.Stdin, os.Stdout)
}

// crash kills a sandbox's supervisor, and with it the whole sandbox.
func crash(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
	t.Helper()
	if err := unix.Kill(supervisorOf(t, p, sb), unix.SIGKILL); err != nil {
		t.Fatalf("kill: %v", err)
	}
}

// everything skips what takes its time where machines are emulated, unless all is asked for.
func everything(t testing.TB, why string) {
	t.Helper()
	if accel(t) == "tcg" && !testenv.RunAll() {
		t.Skipf("emulated: %s; CHECK_ALL=1 runs it", why)
	}
}
