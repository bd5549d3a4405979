//go:build linux

package gvisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// startProvider starts one of the programs, as another provider of the same sandboxes.
func (l *lab) startProvider(name string, args ...string) *exec.Cmd {
	l.T.Helper()
	return supervisedtest.StartOnHost(l.T, name, append([]string{l.opts.Dir, l.opts.RunDir, l.opts.Helper, l.opts.Cgroup}, args...)...)
}

// snapshotProgram takes a snapshot of the sandbox args[0].
func snapshotProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Get(context.Background(), args[0])
	if err != nil {
		return err
	}
	_, err = atoll.TakeSnapshot(context.Background(), sb)
	return err
}

// A snapshot exists as a whole or not at all, whichever of the processes that make it is
// killed half way.
func TestSnapshotCutShort(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(l.opts.Dir, "snapshots")
	busy := func(t *testing.T, l *lab) atoll.Sandbox { // with memory that takes a while to write
		t.Helper()
		sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/memory", Size: 400 << 20}}})
		l.Sh(sb, "head -c 200000000 /dev/urandom > /memory/random; echo works > /root/file")
		return sb
	}
	// begun starts a snapshot of sb, and stops the sentry when a part of it is on disk. The caller calls
	// goOn or kills the sentry.
	begun := func(t *testing.T, l *lab, sb atoll.Sandbox, start func()) (goOn func()) {
		t.Helper()
		sentry := supervisedtest.Children(t, l.SupervisorOf(sb))["runsc-sandbox"]
		signal := func(s unix.Signal) { l.Must("signal", unix.Kill(sentry, s)) }
		signal(unix.SIGSTOP)
		start()
		l.Poll(func() error {
			signal(unix.SIGCONT) // for a moment, in which it does not get far
			time.Sleep(time.Millisecond)
			signal(unix.SIGSTOP)
			if size := treeSize(dir); size < 1<<20 {
				return fmt.Errorf("%d bytes of a snapshot", size)
			}
			return nil
		})
		if list, err := atoll.Snapshots(l.Context(), l); len(list) > 0 || err != nil {
			t.Errorf("it is listed before it is complete: %v, %v", list, err)
		}
		return func() { signal(unix.SIGCONT) }
	}
	nothing := func(t *testing.T, l *lab) {
		t.Helper()
		l.Poll(func() error {
			if left := supervisedtest.ListDir(t, dir); len(left) > 0 {
				return fmt.Errorf("left of the snapshot: %v", left)
			}
			return nil
		})
	}

	t.Run("caller gives up", func(t *testing.T) {
		l := openLab(t, l.opts)
		sb := busy(t, l)
		ctx, cancel := context.WithCancel(t.Context())
		var done <-chan error
		goOn := begun(t, l, sb, func() {
			done = supervisedtest.RunAsync(func() error { _, err := atoll.TakeSnapshot(ctx, sb); return err })
		})
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("snapshot: %v", err)
		}
		goOn()
		nothing(t, l)
		if got := l.Sh(sb, "cat /root/file"); got != "works" {
			t.Errorf("the sandbox afterwards: %q", got)
		}
		nothing(t, l) // nor when the supervisor has finished it
	})
	t.Run("provider", func(t *testing.T) {
		l := openLab(t, l.opts)
		sb := busy(t, l)
		var cmd *exec.Cmd
		goOn := begun(t, l, sb, func() { cmd = l.startProvider("snapshot", sb.ID()) })
		supervisedtest.KillAndWait(cmd)
		goOn()
		if got := l.Sh(sb, "cat /root/file"); got != "works" { // once it is written
			t.Errorf("the sandbox afterwards: %q", got)
		}
		again := openLab(t, l.opts) // sweeps
		nothing(t, again)
		snap, err := atoll.TakeSnapshot(l.Context(), sb)
		l.Must("snapshot", err)
		l.Must("remove snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID))
	})
	t.Run("supervisor", func(t *testing.T) {
		l := openLab(t, l.opts)
		sb := busy(t, l)
		var done <-chan error
		begun(t, l, sb, func() {
			done = supervisedtest.RunAsync(func() error { _, err := atoll.TakeSnapshot(l.Context(), sb); return err })
		})
		l.Must("kill", unix.Kill(l.SupervisorOf(sb), unix.SIGKILL))
		supervisedtest.WantKind(t, "snapshot", <-done, atoll.ErrStopped, "supervisor process died")
		if left := supervisedtest.ListDir(t, dir); len(left) > 0 { // no sweep is needed
			t.Errorf("left of the snapshot: %v", left)
		}
	})
	t.Run("provider and supervisor", func(t *testing.T) {
		l := openLab(t, l.opts)
		sb := busy(t, l)
		var cmd *exec.Cmd
		begun(t, l, sb, func() { cmd = l.startProvider("snapshot", sb.ID()) })
		supervisor := l.SupervisorOf(sb)
		supervisedtest.KillAndWait(cmd)
		l.Must("kill", unix.Kill(supervisor, unix.SIGKILL))
		l.RemoveSandbox(sb)
		if left := supervisedtest.ListDir(t, dir); len(left) > 0 { // it goes with its sandbox
			t.Errorf("left of the snapshot: %v", left)
		}
	})
}

// A process that is killed while it makes a sandbox does not keep others from making it
// again, at once.
func TestCreateAfterAKill(t *testing.T) {
	l := newLab(t)
	for i := range 30 {
		spec := atoll.Spec{ID: atoll.NewID(), Name: "taken"}
		cmd := l.startProvider("create", spec.ID)
		time.Sleep(time.Duration(3*i) * time.Millisecond)
		supervisedtest.KillAndWait(cmd)
		sb, err := l.Create(l.Context(), &spec)
		if atoll.KindOf(err) == atoll.ErrAlreadyExists {
			if sb, err = l.Get(l.Context(), spec.ID); err == nil && l.Status(sb).State != atoll.StateRunning {
				t.Errorf("after %d ms: it is there and %s", 3*i, l.Status(sb).State)
			}
		}
		l.Must("create", err)
		l.RemoveSandbox(sb)
	}
}

// makeProgram makes sandboxes, one after the other, until it is killed: half of them with
// limits, and half of them with AutoRemove. Those without limits may have booted before.
func makeProgram(args []string) error {
	p, _, err := openProgram(args, func(o *gvisor.Options) { o.Spare, o.Stock = true, 2 })
	if err != nil {
		return err
	}
	defer p.Close()
	for i := 0; ; i++ {
		spec := &atoll.Spec{Name: "n" + atoll.NewID()[:8]}
		if i%4 < 2 {
			spec.Resources = atoll.Resources{Memory: 256 << 20, CPUs: 1}
		}
		if i%2 == 0 {
			spec.Cmd, spec.AutoRemove = []string{"sleep", "1000"}, true
		}
		if _, err := p.Create(context.Background(), spec); err != nil && !errors.Is(err, atoll.ErrInternal) { // its supervisor was killed
			return err
		}
	}
}

// A creation that is cut short leaves nothing, whichever of its processes is killed, and
// whenever.
func TestCreateCutShort(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	l := newLab(t, func(o *gvisor.Options) { o.Cgroup += "cut-" })
	l.Must("close", l.Close())
	cuts := 30
	if testing.Short() {
		cuts = 6
	}
	const seed = 13
	random := rand.New(rand.NewPCG(seed, 0))
	for range cuts {
		cmd := l.startProvider("make")
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		victims := slices.Collect(maps.Keys(l.liveProcesses()))
		slices.Sort(victims)
		random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		for _, pid := range victims[:random.IntN(len(victims)+1)] {
			_ = unix.Kill(pid, unix.SIGKILL) // may have ended
		}
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		supervisedtest.KillAndWait(cmd)
	}
	made := 0
	l.Poll(func() error {
		p, err := gvisor.New(l.opts)
		if err != nil {
			return err
		}
		defer p.Close()
		list, err := p.List(l.Context(), atoll.Filter{})
		if err != nil {
			return err
		}
		for _, st := range list {
			sb, err := p.Get(l.Context(), st.ID)
			if err == nil {
				err = sb.Remove(l.Context(), atoll.RemoveVolumes())
			}
			if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
				return err
			}
			made++
		}
		for end := time.Now().Add(testenv.Scale(10 * time.Second)); len(l.ListFiles(t)) > 0 && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond) // for the sweep, which Close ends
		}
		if err := p.Close(); err != nil {
			return err
		}
		if alive, left := l.liveProcesses(), supervisedtest.ListCgroups(t, l.opts.Cgroup); len(alive)+len(left) > 0 {
			return fmt.Errorf("after %d cuts (seed %d) there are left: %v %v", cuts, seed, alive, left)
		}
		if left := l.ListFiles(t); len(left) > 0 {
			return fmt.Errorf("after %d cuts (seed %d) there are left: %v", cuts, seed, left)
		}
		return nil
	})
	t.Logf("%d cuts; %d sandboxes were whole", cuts, made)
}

// A spare supervisor that died does not fail the next Create, and leaves nothing.
func TestSpareThatDied(t *testing.T) {
	l := newLab(t, func(o *gvisor.Options) { o.Cgroup += "spare-" })
	for range 3 {
		var spare map[int]string
		l.Poll(func() error {
			if spare = l.liveProcesses(); len(spare) == 0 {
				l.RemoveSandbox(l.NewSandbox(atoll.Spec{})) // then another spare starts
				return errors.New("there is no spare supervisor")
			}
			return nil
		})
		for pid := range spare {
			l.Must("kill", unix.Kill(pid, unix.SIGKILL))
		}
		l.Poll(func() error {
			if left := l.liveProcesses(); len(left) > 0 {
				return fmt.Errorf("%v does not die", left)
			}
			return nil
		})
	}
	l.RemoveSandbox(l.NewSandbox(atoll.Spec{}))
	l.Must("close", l.Close())
	if left := supervisedtest.ListCgroups(t, l.opts.Cgroup); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// There is only one spare supervisor, however many sandboxes are made meanwhile.
func TestOneSpare(t *testing.T) {
	needGVisor(t)
	var started atomic.Int32
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	l := openLab(t, freshOptions(t).WithStep(func(name string) error {
		if name == "spare" {
			started.Add(1)
			<-release
		}
		return nil
	}))
	t.Cleanup(free)
	for range 4 {
		l.RemoveSandbox(l.NewSandbox(atoll.Spec{}))
	}
	free()
	l.Poll(func() error {
		if len(l.liveProcesses()) == 0 {
			return errors.New("there is no spare supervisor")
		}
		return nil
	})
	l.Must("close", l.Close())
	if n := started.Load(); n != 1 {
		t.Errorf("%d supervisors were started ahead, want 1", n)
	}
}

// The cgroup that has a sandbox's name is removed with it, whatever the record says.
func TestRemoveTakesTheCgroup(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{NoStart: true})
	group := filepath.Join("/sys/fs/cgroup", l.opts.Cgroup+sb.ID())
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		group = filepath.Join("/sys/fs/cgroup/memory", l.opts.Cgroup+sb.ID())
	}
	l.Must("mkdir", os.Mkdir(group, 0o755))
	r := l.ReadRecord(sb)
	r["cgroup"] = "/" + l.opts.Cgroup + "another"
	data, err := json.Marshal(r)
	l.Must("marshal", err)
	l.Must("forge", os.WriteFile(l.RecordPath(sb), data, 0o600))
	l.RemoveSandbox(sb)
	if left := supervisedtest.ListCgroups(t, l.opts.Cgroup+sb.ID()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
		_ = os.Remove(group)
	}
}

// liveProcesses lists the processes on the host of the lab's sandboxes: each has the name
// of a cgroup or of the run directory among its arguments, except a supervisor without a
// cgroup, which is a child of this process.
func (l *lab) liveProcesses() map[int]string {
	l.T.Helper()
	found := map[int]string{}
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	l.Must("list processes", err)
	for _, path := range paths {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		cmdline, _ := os.ReadFile(path)
		text := strings.ReplaceAll(string(cmdline), "\x00", " ")
		ours := strings.Contains(text, l.opts.Cgroup) || supervisedtest.ParentOf(pid) == os.Getpid()
		if strings.HasPrefix(text, "atoll-keeper") && ours || strings.HasPrefix(text, "runsc") && strings.Contains(text, l.opts.RunDir) {
			found[pid] = text
		}
	}
	return found
}

// treeSize returns the size of all files below dir.
func treeSize(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}
