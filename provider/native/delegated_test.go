//go:build linux

package native_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// TestDelegated runs tests of limits, pauses and snapshots as an ordinary user who owns a cgroup.
func TestDelegated(t *testing.T) {
	needNative(t)
	name := fmt.Sprintf("atoll-test-user-%d", os.Getpid())
	const tests = "^(TestCgroupsOfUser|TestLimitsInside|TestOutOfMemory|TestSnapshotOfChanges)$"
	supervisedtest.RunInGroups(t, name, tests, map[string]string{engineVar: helperPath(t)})
}

// The sandboxes of a user who owns a cgroup have theirs in it. Nothing of them is left, whatever ends them.
func TestCgroupsOfUser(t *testing.T) {
	l := newLab(t, ownCgroup("user"))
	caps := l.Info().Caps
	if os.Geteuid() == 0 || !caps.MemoryLimit {
		t.Skip("this is not an ordinary user with a cgroup")
	}
	if !caps.CPULimit || !caps.Pause || !caps.Snapshot {
		t.Errorf("caps: %+v", caps)
	}
	limits := atoll.Resources{Memory: 64 << 20, CPUs: 1, Processes: 50}
	sb := l.NewSandbox(atoll.Spec{Resources: limits})
	p := l.StartCommand(sb, &atoll.Command{Args: []string{"sh", "-c", supervisedtest.BeatScript}})
	l.AwaitBeat(sb)
	l.Must("pause", atoll.Pause(l.Context(), sb))
	before := l.beatSize(sb)
	time.Sleep(100 * time.Millisecond)
	if after := l.beatSize(sb); after != before {
		t.Errorf("a paused sandbox goes on: %d bytes, then %d", before, after)
	}
	l.Must("resume", atoll.Resume(l.Context(), sb))
	l.AwaitBeat(sb)
	l.Must("end", p.Signal(l.Context(), atoll.SIGKILL))
	begin := cpuTime(l, sb)
	l.Sh(sb, "timeout 1 sh -c 'while :; do :; done & while :; do :; done & wait' || true")
	if used := cpuTime(l, sb) - begin; used > 1500*time.Millisecond {
		t.Errorf("within 1 s, two loops used %s of 1 CPU", used)
	}
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "nproc"); got != "1" {
		t.Errorf("%s CPUs after a restart", got)
	}
	l.RemoveSandbox(sb)

	sb = l.NewSandbox(atoll.Spec{Resources: limits})
	l.StartCommand(sb, &atoll.Command{Args: []string{"sleep", "1000"}})
	l.kill(l.SupervisorOf(sb))
	l.AwaitState(sb, atoll.StateFailed)
	l.RemoveSandbox(sb)

	l.NewSandbox(atoll.Spec{TTL: atoll.Duration(time.Second), Resources: limits}) // its supervisor removes it
	l.Poll(func() error {
		if list, err := l.List(l.Context(), atoll.Filter{}); err != nil || len(list) > 0 {
			return fmt.Errorf("there is %v, %v", list, err)
		}
		return nil
	})
	l.Close() // and with it the spare supervisor
	l.awaitNothing()
}

// cpuTime returns the CPU time that a sandbox has used.
func cpuTime(l *lab, sb atoll.Sandbox) time.Duration {
	l.T.Helper()
	u, err := atoll.UsageOf(l.Context(), sb)
	l.Must("usage", err)
	return time.Duration(u.CPU)
}

// beatSize returns the number of bytes that BeatScript has written.
func (l *lab) beatSize(sb atoll.Sandbox) int64 {
	l.T.Helper()
	info, err := os.Stat(l.VolumePath(sb, "beat"))
	l.Must("stat", err)
	return info.Size()
}
