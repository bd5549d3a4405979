//go:build linux

package supervised_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// worlds is the backend of these tests.
type worlds struct{}

func (worlds) Open(statedir.Dir) error { return nil }
func (worlds) Close() error            { return nil }
func (worlds) Image(_ context.Context, rec *statedir.Record) error {
	rec.Status.Image = "host"
	return nil
}
func (worlds) Helper() (string, error)          { return supervised.Self() }
func (worlds) Job(*supervisor.Job) (any, error) { return plan{Greeting: "hello, world"}, nil }

func (worlds) Hold(context.Context, *statedir.Record) (*os.File, error) { return nil, nil }

func (worlds) Probe(ctx context.Context) atoll.Probe {
	return supervised.Try(ctx, "/proc/self/exe", probeArgv0, nil)
}

func (worlds) Restores(*atoll.Snapshot, *atoll.Spec) error { return nil }

func (worlds) Limits(r atoll.Resources) cgroup.Limits {
	return cgroup.Limits{Memory: max(int64(r.Memory), 0), CPUs: max(r.CPUs, 0)}
}

// Supports refuses everything that the caps do not allow.
func (worlds) Supports(s *atoll.Spec) error {
	r, bind := s.Resources, func(m atoll.Mount) bool { return m.Type == atoll.MountBind }
	for what, asked := range map[string]bool{
		"images": s.Image != "" && s.Image != "host", "snapshots": s.Snapshot != "", "bind mounts": slices.ContainsFunc(s.Mounts, bind), "read-only root": s.ReadOnlyRoot,
		"process limits": r.Processes > 0, "disk limits": r.Disk > 0, "GPUs": r.GPUs != "", "caches": s.Cache,
		"workspaces": s.Workspace != (atoll.WorkspaceRef{}), "networks": s.Network.Mode != atoll.NetworkNone, "ports": s.Publishes(),
		"memory limits": r.Memory > 0 && !caps.MemoryLimit, "CPU limits": r.CPUs > 0 && !caps.CPULimit,
	} {
		if asked {
			return atoll.Errorf("create", s.Name, atoll.ErrUnsupported, "no %s in this world", what)
		}
	}
	return nil
}

// base is the group of the cgroups of worlds.
var base = cgroup.Open(cgroup.Root).FindBase()

// caps are the caps of worlds: the host enforces their limits.
var caps = atoll.Caps{
	Restart: true, Durable: atoll.DurableNone, Survives: true, Reattach: true, ExitSignal: true, IdleStop: true, Extend: true,
	TTY: true, Files: true, Dial: true, Users: true, Volumes: true, Tmpfs: true,
	NetworkNone: true, MemoryLimit: base.Memory, CPULimit: base.CPU,
}

// openProvider makes a provider over directories of its own, which must be empty in the
// end.
func openProvider(t testing.TB, change ...func(*supervised.Options)) *supervised.Provider {
	t.Helper()
	run, err := os.MkdirTemp("", "atoll")
	if err != nil {
		t.Fatal(err)
	}
	opts := newOptions(filepath.Join(t.TempDir(), "state"), run)
	for _, f := range change {
		f(&opts)
	}
	t.Cleanup(func() {
		for _, dir := range []string{run, opts.Dir + "/sandboxes", opts.Dir + "/records", opts.Dir + "/volumes/default", opts.Dir + "/names/default"} {
			entries, err := os.ReadDir(dir)
			if err != nil && !os.IsNotExist(err) || len(entries) > 0 {
				t.Errorf("left behind: %s: %v %v", dir, entries, err)
			}
		}
		os.RemoveAll(run)
	})
	return reopen(t, opts)
}

func newOptions(dir, run string) supervised.Options {
	return supervised.Options{
		Info:    atoll.Info{Name: "worlds", Isolation: atoll.IsolationContainer, Version: "1", Caps: caps},
		Backend: worlds{}, Supervisor: supervisorArgv0, Steps: supervisor.Steps((*world)(nil).Steps()),
		Dir: dir, RunDir: run, Cgroups: base.Path, Cgroup: cgroupPrefix, Spare: true,
	}
}

func reopen(t testing.TB, opts supervised.Options) *supervised.Provider {
	t.Helper()
	p, err := supervised.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	openedOptions.Store(p, opts)
	return p
}

// openedOptions holds the options of each provider, to open its state again:
// supervised.Options by *supervised.Provider.
var openedOptions sync.Map

func optionsOf(p atoll.Provider) supervised.Options {
	opts, _ := openedOptions.Load(p)
	return opts.(supervised.Options)
}

// cgroupPrefix begins the names of this process's cgroups: other tests run at the same
// time.
var cgroupPrefix = fmt.Sprintf("atoll-kept-%d-", os.Getpid())

func listCgroups(t *testing.T) (list []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/" + cgroupPrefix + "*", "/sys/fs/cgroup/*/" + cgroupPrefix + "*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	return list
}

// makerEnv makes the test binary a program that makes a sandbox in those directories, as
// described on its standard input, and waits to be killed.
const makerEnv = "ATOLL_TEST_KEPT"

func TestMain(m *testing.M) {
	if dirs := os.Getenv(makerEnv); dirs != "" {
		dir, run, _ := strings.Cut(dirs, ":")
		p, err := supervised.New(newOptions(dir, run))
		if err == nil {
			err = providertest.CreateAndWait(p, os.Stdin, os.Stdout)
		}
		exitWith(err)
	}
	os.Exit(m.Run())
}

// The promises of supervisors and their providers do not depend on the engine: here only
// the inside knows of processes and files, as in a virtual machine.
func TestConformance(t *testing.T) {
	testenv.Need(t, testenv.Root)
	if probe := (worlds{}).Probe(t.Context()); !probe.OK {
		t.Skipf("no worlds here: %s; %s", probe.Reason, probe.Fix)
	}
	groups := []string{"create", "crash"}
	if !testing.Short() { // as with the race detector, which needs more memory than the limits allow
		groups = append(groups, "restart", "watch", "remove", "steps", "exec", "expiry", "tty", "volumes", "errors", "caps", "limits", "dial", "faults")
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return openProvider(t) },
		providertest.Only(groups...),
		providertest.WireOnly(), // the guest is gVisor's, whose tests run all promises
		providertest.Except("limits/programs see the limits of memory and CPUs", "programs of the test's engine are those of this machine"),
		providertest.Except("limits/the end of the memory ends the greediest process, says so, and spares all else", "as above: gVisor's tests run it"),
		providertest.Slow(3),
		providertest.Leaks(listCgroups),
		providertest.Reopen(func(t *testing.T, p atoll.Provider) atoll.Provider { return reopen(t, optionsOf(p)) }),
		providertest.OtherProcess(makeElsewhere),
		providertest.CrashSandbox(crashSandbox),
		providertest.FailSteps(func(t *testing.T, step func(name string) error) atoll.Provider {
			return openProvider(t, func(o *supervised.Options) { o.Step, o.Spare = step, false })
		}),
	)
}

// An engine can die alone: then the sandbox has failed, says why, and can be started again.
func TestEngineThatDies(t *testing.T) {
	testenv.Need(t, testenv.Root)
	p := openProvider(t)
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
	defer cancel()
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sb.Remove(context.Background(), atoll.RemoveVolumes()); err != nil {
			t.Error(err)
		}
	}()
	if err := atoll.WriteFile(ctx, sb, "file", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	sleep, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := statedir.Dir(optionsOf(p).Dir)
	who, err := dir.Supervisor(sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", who.PID))
	if err != nil {
		t.Fatal(err)
	}
	guest, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(guest, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit, err := sleep.Wait(ctx); err == nil && exit.Code != 137 || err != nil && atoll.KindOf(err) != atoll.ErrStopped {
		t.Errorf("Wait: %v, %v", exit, err)
	}
	for st, want := (atoll.Status{}), "the world died: as all worlds do; see "+filepath.Join(dir.Sandbox(sb.ID()), supervisor.LogName); st.State != atoll.StateFailed; {
		if st, err = sb.Status(ctx); err != nil {
			t.Fatal(err)
		}
		if st.State == atoll.StateFailed && st.Reason != want {
			t.Errorf("it failed for %q, want %q", st.Reason, want)
		}
	}
	log, err := os.ReadFile(filepath.Join(dir.Sandbox(sb.ID()), supervisor.LogName))
	if err != nil || !strings.HasPrefix(string(log), "hello, world\n") || !strings.Contains(string(log), "the world died") {
		t.Errorf("log: %s, %v", log, err)
	}
	if err := sb.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"cat", "file"}}); string(out) != "kept" {
		t.Errorf("the file holds %q, %v", out, err)
	}
}

// A supervisor ends when somebody deletes the directory of its sandbox.
func TestDeletedDirectory(t *testing.T) {
	testenv.Need(t, testenv.Root)
	p := openProvider(t, func(o *supervised.Options) { o.Spare = false })
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	dir := statedir.Dir(optionsOf(p).Dir)
	who, err := dir.Supervisor(sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(optionsOf(p).Dir); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testenv.Scale(time.Minute)); !errors.Is(unix.Kill(who.PID, 0), unix.ESRCH); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("supervisor %d lives on", who.PID)
		}
	}
	if groups := listCgroups(t); len(groups) > 0 {
		t.Errorf("left behind: %v", groups)
	}
}

// weakWorlds is the backend of a process that has no cgroups.
type weakWorlds struct{ worlds }

func (weakWorlds) Supports(s *atoll.Spec) error {
	if s.Resources.Memory > 0 {
		return atoll.Errorf("create", s.Name, atoll.ErrUnsupported, "no memory limits here")
	}
	return nil
}

// A process that cannot limit memory starts no sandbox that another one made with a limit.
func TestStartWithoutCgroups(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	p := openProvider(t)
	opts := optionsOf(p)
	opts.Backend, opts.Info.Caps.MemoryLimit, opts.Info.Caps.CPULimit, opts.Cgroups = weakWorlds{}, false, false, ""
	weak := reopen(t, opts)
	defer weak.Close()
	for memory, want := range map[atoll.Bytes]atoll.Kind{0: "", 256 << 20: atoll.ErrUnsupported} {
		sb, err := p.Create(t.Context(), &atoll.Spec{Resources: atoll.Resources{Memory: memory}})
		if err != nil {
			t.Fatal(err)
		}
		if err := sb.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		again, err := weak.Get(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Start(t.Context()); atoll.KindOf(err) != want {
			t.Errorf("start with a limit of %s: %v, want %q", memory, err, want)
		}
		if st, err := again.Status(t.Context()); err != nil || want == "" && st.Caps.MemoryLimit {
			t.Errorf("a sandbox without a cgroup has caps %+v, %v", st.Caps, err)
		}
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Error(err)
		}
	}
	p.Close()
}

// makeElsewhere makes sandboxes in another process.
func makeElsewhere(t *testing.T) (maker *exec.Cmd, again func() atoll.Provider) {
	p := openProvider(t)
	opts := optionsOf(p)
	p.Close()
	maker = exec.Command(os.Args[0])
	maker.Env = append(os.Environ(), makerEnv+"="+opts.Dir+":"+opts.RunDir)
	return maker, func() atoll.Provider { return reopen(t, opts) }
}

// crashSandbox kills a sandbox's supervisor, and with it all of the sandbox.
func crashSandbox(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
	t.Helper()
	who, err := statedir.Dir(optionsOf(p).Dir).Supervisor(sb.ID())
	if err == nil {
		err = unix.Kill(who.PID, unix.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
}
