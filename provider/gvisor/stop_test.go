//go:build linux

package gvisor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// sandboxProcesses returns the supervisor, the sentry and the gofer of the sandbox.
func (l *lab) sandboxProcesses(sb atoll.Sandbox) map[string]int {
	l.T.Helper()
	supervisor := l.SupervisorOf(sb)
	pids := supervisedtest.Children(l.T, supervisor)
	if pids["runsc-sandbox"] == 0 || pids["runsc-gofer"] == 0 {
		l.T.Fatalf("processes of the supervisor: %v", pids)
	}
	pids["supervisor"] = supervisor
	return pids
}

// checkRemoved removes the sandbox and checks that it has left nothing running and no
// cgroup; the end of the test checks the disk.
func (l *lab) checkRemoved(sb atoll.Sandbox, pids map[string]int) {
	l.T.Helper()
	l.RemoveSandbox(sb)
	l.AwaitGone(pids)
	if left := supervisedtest.ListCgroups(l.T, l.opts.Cgroup+sb.ID()); len(left) > 0 {
		l.T.Errorf("left behind: %v", left)
	}
}

// A stop without space for the files of the root file system fails, and the sandbox keeps
// running with them. It can be removed, or stopped when there is space again.
func TestStopOnFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	needGVisor(t)
	opts := freshOptions(t)
	mountDisk(t, opts.Dir, "64m")
	l := openLab(t, opts)
	sb := l.NewSandbox(atoll.Spec{})
	full := l.NewSandbox(atoll.Spec{})
	for _, sb := range []atoll.Sandbox{sb, full} {
		l.Sh(sb, "echo kept > /root/file; head -c 5000000 /dev/urandom > /root/much; md5sum /root/much > /root/sum")
		_, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sh", "-c", supervisedtest.BeatScript}})
		l.Must("exec", err)
		l.AwaitBeat(sb)
	}
	l.FailSh(sb, "head -c 100000000 /dev/zero > /work/big")
	err := sb.Stop(l.Context(), 0)
	supervisedtest.WantKind(t, "stop", err, atoll.ErrExhausted, "could not be saved", "no space left")
	if st := l.Status(sb); st.State != atoll.StateRunning || !st.Ready {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	if got := l.Sh(sb, "cat /root/file; md5sum -c /root/sum"); got != "kept\n/root/much: OK" {
		t.Errorf("its files: %q", got)
	}
	l.checkRemoved(full, l.sandboxProcesses(full))
	l.Must("make space", os.Remove(filepath.Join(opts.Dir, "volumes", "default", "data-"+sb.ID(), "big")))
	l.AwaitBeat(sb)
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "cat /root/file; md5sum -c /root/sum"); got != "kept\n/root/much: OK" {
		t.Errorf("its files after stop and start: %q", got)
	}
	l.FailSh(sb, "head -c 100000000 /dev/zero > /work/big")
	l.checkRemoved(sb, l.sandboxProcesses(sb))
	l.Must("close", l.Close())
	placesOf(opts).CheckEmpty(t) // now, before the disk is gone
}

// A sandbox whose main process has ended, but whose files cannot be saved, ends when there
// is space again, and not before.
func TestMainEndsOnFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	needGVisor(t)
	opts := freshOptions(t)
	mountDisk(t, opts.Dir, "64m")
	l := openLab(t, opts)
	sb := l.NewSandbox(atoll.Spec{Cmd: []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"}})
	l.Sh(sb, "echo kept > /root/file; head -c 5000000 /dev/urandom > /root/much")
	ballast := filepath.Join(opts.Dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("ballast: %v", err)
	}
	supervisedtest.WantKind(t, "stop", sb.Stop(l.Context(), testenv.Scale(5*time.Second)), atoll.ErrExhausted, "could not be saved")
	if st := l.Status(sb); st.State != atoll.StateRunning {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	l.Must("make space", os.Remove(ballast))
	if st := l.AwaitState(sb, atoll.StateStopped); st.Exit == nil || st.Exit.Code != 0 || st.Reason != "" {
		t.Errorf("its exit is %v (%s)", st.Exit, st.Reason)
	}
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "cat /root/file"); got != "kept" {
		t.Errorf("its file: %q", got)
	}
	l.RemoveSandbox(sb)
	l.Must("close", l.Close())
	placesOf(opts).CheckEmpty(t) // now, before the disk is gone
}

// A stop that fails because the sentry does not answer does nothing later, either, when it
// answers again.
func TestStopThatComesTooLate(t *testing.T) {
	l := newLab(t)
	var stopped []<-chan error
	var all []atoll.Sandbox
	for _, grace := range []time.Duration{0, time.Second} {
		sb := l.NewSandbox(atoll.Spec{})
		_, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sh", "-c", supervisedtest.BeatScript}})
		l.Must("exec", err)
		l.AwaitBeat(sb)
		sentry := l.sandboxProcesses(sb)["runsc-sandbox"]
		l.suspendProcess(sentry)
		defer func() { _ = unix.Kill(sentry, unix.SIGCONT) }()
		all, stopped = append(all, sb), append(stopped, supervisedtest.RunAsync(func() error { return sb.Stop(l.Context(), grace) }))
	}
	for i, sb := range all {
		supervisedtest.WantKind(t, "stop", <-stopped[i], atoll.ErrTimeout, "does not answer")
		l.Must("go on", unix.Kill(l.sandboxProcesses(sb)["runsc-sandbox"], unix.SIGCONT))
		l.AwaitBeat(sb)
		if got := l.Run(sb, &atoll.Command{Args: []string{"echo", "works"}}); got != "works" {
			t.Errorf("afterwards: %q", got)
		}
	}
}

// mountDisk makes dir a file system of that size.
func mountDisk(t *testing.T, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("atoll-test", dir, "tmpfs", 0, "mode=700,size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

// If gVisor's own state is deleted beneath a sandbox, its processes keep running, and a
// stop, which then cannot save files, fails rather than lose them. The sandbox can be
// removed.
func TestRunDirectoryDeleted(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "echo kept > /root/file; echo work > /work/file")
	_, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sh", "-c", supervisedtest.BeatScript}})
	l.Must("exec", err)
	pids := l.sandboxProcesses(sb)
	l.Must("delete", os.RemoveAll(filepath.Join(l.opts.RunDir, sb.ID())))
	stop := func() error { return sb.Stop(l.Context(), 0) }
	for _, stopped := range []<-chan error{supervisedtest.RunAsync(stop), supervisedtest.RunAsync(stop), supervisedtest.RunAsync(stop)} {
		if err := <-stopped; err == nil || !strings.Contains(err.Error(), "could not be saved") {
			t.Errorf("one of three stops: %v", err)
		}
	}
	if st := l.Status(sb); st.State != atoll.StateRunning {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	l.AwaitBeat(sb)
	if got, err := atoll.ReadFile(l.Context(), sb, "/work/file"); string(got) != "work\n" || err != nil {
		t.Errorf("its work directory: %q, %v", got, err)
	}
	l.checkRemoved(sb, pids)
}

// suspendProcess stops a process, and returns when it does nothing more.
func (l *lab) suspendProcess(pid int) {
	l.T.Helper()
	l.Must("freeze", unix.Kill(pid, unix.SIGSTOP))
	l.Poll(func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		l.Must("list threads", err)
		for _, path := range threads {
			stat, err := os.ReadFile(path)
			if err == nil && !strings.Contains(string(stat), ") T ") {
				return fmt.Errorf("a thread of %d goes on: %s", pid, stat)
			}
		}
		return nil
	})
}

// A supervisor that does not answer could still save its sandbox's files: a stop fails and
// names the process, and succeeds when it answers again. A removal kills it.
func TestSupervisorThatHangs(t *testing.T) {
	l := newLab(t)
	sb, other := l.NewSandbox(atoll.Spec{}), l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "echo kept > /root/file")
	supervisor, pids := l.SupervisorOf(sb), l.sandboxProcesses(other)
	for _, pid := range []int{supervisor, pids["supervisor"]} {
		l.suspendProcess(pid)
	}
	removed := supervisedtest.RunAsync(func() error { return other.Remove(l.Context(), atoll.RemoveVolumes()) })
	err := sb.Stop(l.Context(), 0)
	supervisedtest.WantKind(t, "stop", err, atoll.ErrUnavailable, fmt.Sprint(supervisor), "does not answer")
	l.Must("remove", <-removed)
	l.checkRemoved(other, pids)
	l.Must("thaw", unix.Kill(supervisor, unix.SIGCONT))
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "cat /root/file"); got != "kept" {
		t.Errorf("its files: %q", got)
	}
}
