//go:build linux

package native_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/native"
	"github.com/seed46cd37a8/atoll/provider/native/internal/plan"
)

// Whichever process is killed before a step of a start, nothing is left, and the next start works.
func TestKilledBeforeEachStep(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	type victims struct{ provider, supervisor, first bool }
	for i, step := range plan.EngineSteps {
		t.Run(step, func(t *testing.T) {
			for _, v := range []victims{{supervisor: true}, {provider: true}, {provider: true, supervisor: true}, {first: true}, {provider: true, first: true}} {
				if v.first && i <= slices.Index(plan.EngineSteps[:], "first process") {
					continue // it does not run yet
				}
				l := newLab(t, ownCgroup("step"), func(o *native.Options) { o.Spare = false })
				id := atoll.NewID()
				maker := l.startProvider("create", id, step)
				supervisor := l.awaitHalt(id)
				pids := supervisedtest.Children(t, supervisor)
				pids["supervisor"] = supervisor
				if v.first {
					l.kill(pids[firstArgv0])
				}
				if v.provider {
					supervisedtest.KillAndWait(maker)
				}
				if v.supervisor {
					l.kill(supervisor)
				}
				_ = unix.Kill(supervisor, unix.SIGCONT)
				if !v.provider {
					if err := maker.Wait(); err == nil && v.supervisor {
						t.Errorf("%+v: the sandbox was made", v)
					}
				}
				if v.first && !v.provider { // it may have failed after its creation
					l.removeFailed(id)
				}
				l.AwaitGone(pids)
				next := openLab(t, l.opts) // sweeps
				sb, err := next.Create(next.Context(), demandingSpec(id))
				if err != nil {
					t.Fatalf("%+v: the next creation: %v", v, err)
				}
				if got := next.Sh(sb, "echo works"); got != "works" {
					t.Errorf("%+v: the next sandbox: %q", v, got)
				}
				next.RemoveSandbox(sb)
				next.awaitNothing()
			}
		})
	}
}

// A provider that is killed before any of its own steps of a creation leaves nothing that the next one does not sweep.
func TestProviderKilledBeforeEachStep(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	l := newLab(t, ownCgroup("provider"), func(o *native.Options) { o.Spare = false })
	l.Must("close", l.Close())
	var steps []string
	for n := 1; ; n++ {
		id := atoll.NewID()
		maker := supervisedtest.HostProgram(t, "halt", append(l.providerArgs(), id, strconv.Itoa(n))...)
		out, err := maker.StdoutPipe()
		l.Must("pipe", err)
		l.Must("start", maker.Start())
		said, err := bufio.NewReader(out).ReadString('\n')
		l.Must("read", err)
		supervisedtest.KillAndWait(maker)
		next := openLab(t, l.opts)
		sb, err := next.Create(next.Context(), demandingSpec(id))
		if said == "made\n" {
			supervisedtest.WantKind(t, "create again", err, atoll.ErrAlreadyExists)
			sb, err = next.Get(next.Context(), id)
		}
		l.Must("after a kill before step "+said, err)
		next.RemoveSandbox(sb)
		next.awaitNothing()
		l.Must("close", next.Close())
		if said == "made\n" {
			break
		}
		steps = append(steps, strings.TrimSpace(said))
	}
	t.Logf("%d steps: %s", len(steps), strings.Join(steps, ", "))
}

// haltProgram makes a sandbox with the id args[0]. Before its step number args[1] it prints the name of the step and waits to be
// killed.
func haltProgram(args []string) error {
	n, err := strconv.Atoi(args[5])
	if err != nil {
		return err
	}
	p, args, err := openProgram(args, func(o *native.Options) {
		*o = o.WithStep(func(name string) error {
			if strings.HasPrefix(name, "supervisor: ") { // asked ahead
				return nil
			}
			if n--; n == 0 {
				fmt.Println(name)
				select {}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	if _, err := p.Create(context.Background(), demandingSpec(args[0])); err != nil {
		return err
	}
	fmt.Println("made")
	select {}
}

// awaitHalt waits until the supervisor of a sandbox that is being made has halted, and returns its PID.
func (l *lab) awaitHalt(id string) (pid int) {
	l.T.Helper()
	l.Poll(func() error {
		holder, err := statedir.Dir(l.opts.Dir).Supervisor(id)
		if err != nil {
			return err
		}
		if state := supervisedtest.StateOf(holder.PID); state != "T" {
			return fmt.Errorf("the supervisor is in state %q", state)
		}
		pid = holder.PID
		return nil
	})
	return pid
}

// removeFailed removes a sandbox that has failed, if it exists.
func (l *lab) removeFailed(id string) {
	l.T.Helper()
	sb, err := l.Get(l.Context(), id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return
	}
	l.Must("get", err)
	l.AwaitState(sb, atoll.StateFailed)
	l.RemoveSandbox(sb)
}

// When one of a sandbox's processes on the host is killed, the sandbox has failed and says
// why, no process of it keeps running, and it can be removed, or started again with its
// work.
func TestKilledFromOutside(t *testing.T) {
	for _, tt := range []struct{ victim, reason string }{
		{"supervisor", "supervisor process died"},
		{"first process", "first process died: killed by signal killed"},
	} {
		t.Run(tt.victim, func(t *testing.T) {
			l := newLab(t)
			sb, other := l.NewSandbox(atoll.Spec{}), l.NewSandbox(atoll.Spec{})
			l.Sh(sb, "echo kept > file; echo kept > /root/file")
			p := l.StartCommand(sb, &atoll.Command{Args: []string{"sleep", "1000"}})
			for _, sb := range []atoll.Sandbox{sb, other} {
				pids := l.sandboxProcesses(sb)
				l.kill(pids[tt.victim])
				st := l.AwaitState(sb, atoll.StateFailed)
				if !strings.Contains(st.Reason, tt.reason) || st.Ready {
					t.Errorf("ready %v, reason %q", st.Ready, st.Reason)
				}
				l.AwaitGone(pids)
			}
			if exit, err := p.Wait(l.Context()); err == nil {
				t.Errorf("wait: %+v", exit)
			} else {
				supervisedtest.WantKind(t, "wait", err, atoll.ErrStopped)
			}
			_, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"true"}})
			supervisedtest.WantKind(t, "exec", err, atoll.ErrStopped, "failed")
			if got, err := atoll.ReadFile(l.Context(), sb, "file"); string(got) != "kept\n" || err != nil {
				t.Errorf("file of the failed sandbox: %q, %v", got, err)
			}
			l.Must("start", sb.Start(l.Context()))
			if got := l.Sh(sb, "cat file /root/file"); got != "kept\nkept" {
				t.Errorf("after start: %q", got)
			}
			l.RemoveSandbox(other)
		})
	}
}

// busyScript runs in each of the situations of TestKilledWhile. It ignores SIGTERM, and writes a file when it gets that.
const busyScript = "trap 'echo >> /work/asked' TERM; (while :; do sleep 0.01; done) & while :; do echo >> /work/beat; sleep 0.02; done"

// In whichever situation one of its processes is killed, a sandbox ends and starts again, and nothing of it is left after its
// removal.
func TestKilledWhile(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	for name, begin := range map[string]func(l *lab, sb atoll.Sandbox){ // something that goes on until the kill
		"commands start": func(l *lab, sb atoll.Sandbox) {
			for range 4 {
				l.goOn(func(ctx context.Context) error {
					for {
						if err := atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}}); err != nil {
							return err
						}
					}
				})
			}
		},
		"output comes": func(l *lab, sb atoll.Sandbox) {
			l.goOn(func(ctx context.Context) error { return atoll.Run(ctx, sb, &atoll.Command{Args: []string{"yes"}}) })
		},
		"it is paused": func(l *lab, sb atoll.Sandbox) {
			if !l.Info().Caps.Pause {
				l.T.Skip("no sandbox can be paused here")
			}
			l.Must("pause", atoll.Pause(l.Context(), sb))
		},
		"it stops": func(l *lab, sb atoll.Sandbox) {
			l.goOn(func(ctx context.Context) error { return sb.Stop(ctx, time.Minute) })
			l.Poll(func() error {
				if _, err := atoll.ReadFile(l.Context(), sb, "/work/asked"); err != nil {
					return fmt.Errorf("no program was asked to end: %w", err)
				}
				return nil
			})
		},
	} {
		for _, victim := range []string{"supervisor", "first process"} {
			t.Run(name+" "+victim, func(t *testing.T) {
				l := newLab(t, ownCgroup("while"))
				sb := l.NewSandbox(atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}})
				killOne := func() (pids map[string]int) {
					l.StartCommand(sb, &atoll.Command{Args: []string{"sh", "-c", busyScript}})
					l.AwaitBeat(sb)
					pids = l.sandboxProcesses(sb)
					begin(l, sb)
					l.kill(pids[victim])
					return pids
				}
				pids := killOne()
				l.Poll(func() error {
					_ = atoll.Resume(l.Context(), sb) // with cgroups of v1, a frozen process does not end
					if st := l.Status(sb); st.State != atoll.StateFailed && st.State != atoll.StateStopped {
						return fmt.Errorf("state %s (%s)", st.State, st.Reason)
					}
					return nil
				})
				next := openLab(t, l.opts) // sweeps
				l.AwaitGone(pids)
				l.Must("close", next.Close())
				l.Must("start", sb.Start(l.Context()))
				if got := l.Sh(sb, "rm -f /work/asked; echo works"); got != "works" {
					t.Errorf("after start: %q", got)
				}
				pids = killOne()
				l.RemoveSandbox(sb)
				l.AwaitGone(pids)
				l.Must("close", l.Close())
				l.awaitNothing()
			})
		}
	}
}

// goOn calls f in the background, with a context that ends with the test, which waits for f.
func (l *lab) goOn(f func(ctx context.Context) error) {
	ctx, done := l.Context(), make(chan struct{})
	go func() {
		defer close(done)
		_ = f(ctx) // until the kill
	}()
	l.T.Cleanup(func() { <-done })
}

// Whichever of its processes is killed while a sandbox is being removed, and whenever, nothing is left of it.
func TestKilledWhileItIsRemoved(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	l := newLab(t, ownCgroup("removed"), func(o *native.Options) { o.Spare = false })
	ends := map[string]int{}
	for i := range 24 {
		sb := l.NewSandbox(atoll.Spec{})
		l.Sh(sb, "echo kept > /root/file")
		pids := l.sandboxProcesses(sb)
		victim := []string{"supervisor", "first process", "provider"}[i%3]
		remover := l.startProvider("remove", sb.ID())
		time.Sleep(time.Duration(2*i) * time.Millisecond)
		if victim == "provider" {
			supervisedtest.KillAndWait(remover)
		} else {
			_ = unix.Kill(pids[victim], unix.SIGKILL) // it may have ended
			if err := remover.Wait(); err != nil {
				t.Errorf("remove, while the %s is killed: %v\n%s", victim, err, remover.Stderr)
			}
		}
		next := openLab(t, l.opts)
		l.Poll(func() error {
			st, err := sb.Status(l.Context())
			if atoll.KindOf(err) == atoll.ErrNotFound {
				ends[victim+": removed"]++
				return nil
			}
			if err != nil || st.State != atoll.StateRunning {
				_, _ = next.List(l.Context(), atoll.Filter{}) // which sweeps
				return fmt.Errorf("%s (%s), %v", st.State, st.Reason, err)
			}
			got, err := atoll.Output(l.Context(), sb, &atoll.Command{Args: []string{"cat", "/root/file"}})
			if k := atoll.KindOf(err); k == atoll.ErrStopped || k == atoll.ErrNotFound || isKilled(err) {
				return err // it was just being removed, perhaps with the process inside
			}
			if string(got) != "kept\n" || err != nil {
				t.Errorf("its file holds %q, %v", got, err)
			}
			ends[victim+": untouched"]++
			l.RemoveSandbox(sb)
			return nil
		})
		l.Must("close", next.Close())
		l.AwaitGone(pids)
	}
	l.awaitNothing()
	t.Log(ends)
}

// isKilled reports whether err is the exit of a process that was killed with its sandbox.
func isKilled(err error) bool {
	exit, ok := errors.AsType[*atoll.ExitError](err)
	return ok && exit.Exit.Reason != ""
}

// A supervisor that is killed at any moment of a start, also within a step, leaves nothing.
func TestSupervisorKilledAnytime(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	l := newLab(t, ownCgroup("anytime"), func(o *native.Options) { o.Spare = false })
	begin := time.Now()
	sb := l.NewSandbox(*demandingSpec(atoll.NewID()))
	limit := time.Since(begin)
	l.RemoveSandbox(sb)
	kills, ends := 40, map[string]int{}
	if testing.Short() {
		kills = 10
	}
	const seed = 7
	random := rand.New(rand.NewPCG(seed, 0))
	for range kills {
		spec := demandingSpec(atoll.NewID())
		created := supervisedtest.RunAsync(func() error { _, err := l.Create(l.Context(), spec); return err })
		var supervisor int
		l.Poll(func() error {
			holder, err := statedir.Dir(l.opts.Dir).Supervisor(spec.ID)
			supervisor = holder.PID
			return err
		})
		time.Sleep(time.Duration(random.Int64N(int64(limit))))
		_ = unix.Kill(supervisor, unix.SIGKILL) // it may have ended
		if <-created == nil {
			l.removeFailed(spec.ID)
			ends["made"]++
		} else {
			ends["not made"]++
		}
	}
	t.Logf("sandboxes: %v", ends)
	l.awaitNothing()
}

// A process that is killed while it makes a sandbox does not keep others from making it
// again, at once.
func TestCreateAfterAKill(t *testing.T) {
	l := newLab(t)
	for i := range 20 {
		id := atoll.NewID()
		maker := l.startProvider("create", id)
		time.Sleep(time.Duration(5*i) * time.Millisecond)
		supervisedtest.KillAndWait(maker)
		sb, err := l.Create(l.Context(), demandingSpec(id))
		if atoll.KindOf(err) == atoll.ErrAlreadyExists {
			if sb, err = l.Get(l.Context(), id); err == nil && l.Status(sb).State != atoll.StateRunning {
				t.Errorf("after %d ms: it is there and %s", 5*i, l.Status(sb).State)
			}
		}
		l.Must("create", err)
		l.RemoveSandbox(sb)
	}
}

// A creation that is cut short leaves nothing, whichever of its processes is killed, and
// whenever.
func TestCreateCutShort(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	l := newLab(t, ownCgroup("cut"), func(o *native.Options) { o.Spare = false })
	l.Must("close", l.Close())
	cuts := 30
	if testing.Short() {
		cuts = 6
	}
	const seed = 13
	random := rand.New(rand.NewPCG(seed, 0))
	for range cuts {
		maker := l.startProvider("make")
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		victims := slices.Collect(maps.Keys(l.liveProcesses()))
		slices.Sort(victims)
		random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		for _, pid := range victims[:random.IntN(len(victims)+1)] {
			_ = unix.Kill(pid, unix.SIGKILL) // may have ended
		}
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		supervisedtest.KillAndWait(maker)
	}
	made := 0
	l.Poll(func() error {
		p, err := native.New(l.opts)
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
		if left := append(l.listLeft(), l.ListFiles(t)...); len(left) > 0 {
			return fmt.Errorf("after %d cuts (seed %d) there are left:\n%s", cuts, seed, strings.Join(left, "\n"))
		}
		return nil
	})
	t.Logf("%d cuts; %d sandboxes were whole", cuts, made)
}

// liveProcesses lists the processes of the lab's sandboxes on the host.
func (l *lab) liveProcesses() map[int]string {
	l.T.Helper()
	found := map[int]string{}
	for _, pid := range supervisedtest.ListProcesses(l.T) {
		if inCgroup(pid, l.opts.Cgroup) {
			found[pid] = strings.Join(supervisedtest.CommandLine(pid), " ")
		}
	}
	return found
}
