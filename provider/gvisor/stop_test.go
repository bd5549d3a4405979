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
)

// beatScript shows that its sandbox runs: it appends to a file.
const beatScript = "while :; do echo >> /work/beat; sleep 0.02; done"

// awaitBeat waits until beatScript has appended something more.
func (l *lab) awaitBeat(sb atoll.Sandbox) {
	l.t.Helper()
	path := filepath.Join(l.opts.Dir, "volumes", "default", "data-"+sb.ID(), "beat")
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	before := size()
	l.poll(func() error {
		if size() == before {
			return fmt.Errorf("what runs in the sandbox stands still")
		}
		return nil
	})
}

// sandboxProcesses returns the supervisor, the sentry and the gofer of the sandbox.
func (l *lab) sandboxProcesses(sb atoll.Sandbox) map[string]int {
	l.t.Helper()
	supervisor := l.supervisorOf(sb)
	pids := children(l.t, supervisor)
	if pids["runsc-sandbox"] == 0 || pids["runsc-gofer"] == 0 {
		l.t.Fatalf("processes of the supervisor: %v", pids)
	}
	pids["supervisor"] = supervisor
	return pids
}

// checkRemoved removes the sandbox and checks that it has left nothing running and no
// cgroup; the end of the test checks the disk.
func (l *lab) checkRemoved(sb atoll.Sandbox, pids map[string]int) {
	l.t.Helper()
	l.remove(sb)
	l.awaitGone(pids)
	if left := listCgroups(l.t, l.opts.Cgroup+sb.ID()); len(left) > 0 {
		l.t.Errorf("left behind: %v", left)
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
	sb := l.create(atoll.Spec{})
	full := l.create(atoll.Spec{})
	for _, sb := range []atoll.Sandbox{sb, full} {
		l.sh(sb, "echo kept > /root/file; head -c 5000000 /dev/urandom > /root/much; md5sum /root/much > /root/sum")
		_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", beatScript}})
		l.must("exec", err)
		l.awaitBeat(sb)
	}
	l.failSh(sb, "head -c 100000000 /dev/zero > /work/big")
	err := sb.Stop(l.ctx(), 0)
	wantKind(t, "stop", err, atoll.ErrExhausted, "could not be saved", "no space left")
	if st := l.status(sb); st.State != atoll.StateRunning || !st.Ready {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	if got := l.sh(sb, "cat /root/file; md5sum -c /root/sum"); got != "kept\n/root/much: OK" {
		t.Errorf("its files: %q", got)
	}
	l.checkRemoved(full, l.sandboxProcesses(full))
	l.must("make space", os.Remove(filepath.Join(opts.Dir, "volumes", "default", "data-"+sb.ID(), "big")))
	l.awaitBeat(sb)
	l.must("stop", sb.Stop(l.ctx(), 0))
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /root/file; md5sum -c /root/sum"); got != "kept\n/root/much: OK" {
		t.Errorf("its files after stop and start: %q", got)
	}
	l.failSh(sb, "head -c 100000000 /dev/zero > /work/big")
	l.checkRemoved(sb, l.sandboxProcesses(sb))
	l.must("close", l.Close())
	checkNothingLeft(t, opts) // now, before the disk is gone
}

// A sandbox whose main process has ended, but whose files cannot be saved, ends when there
// is space again, and not before.
func TestMainEndsOnFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	needGVisor(t)
	opts := freshOptions(t)
	mountDisk(t, opts.Dir, "64m")
	l := openLab(t, opts)
	sb := l.create(atoll.Spec{Cmd: []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"}})
	l.sh(sb, "echo kept > /root/file; head -c 5000000 /dev/urandom > /root/much")
	ballast := filepath.Join(opts.Dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("ballast: %v", err)
	}
	wantKind(t, "stop", sb.Stop(l.ctx(), testenv.Scale(5*time.Second)), atoll.ErrExhausted, "could not be saved")
	if st := l.status(sb); st.State != atoll.StateRunning {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	l.must("make space", os.Remove(ballast))
	if st := l.awaitState(sb, atoll.StateStopped); st.Exit == nil || st.Exit.Code != 0 || st.Reason != "" {
		t.Errorf("its exit is %v (%s)", st.Exit, st.Reason)
	}
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /root/file"); got != "kept" {
		t.Errorf("its file: %q", got)
	}
	l.remove(sb)
	l.must("close", l.Close())
	checkNothingLeft(t, opts) // now, before the disk is gone
}

// A stop that fails because the sentry does not answer does nothing later, either, when it
// answers again.
func TestStopThatComesTooLate(t *testing.T) {
	l := newLab(t)
	var stopped []<-chan error
	var all []atoll.Sandbox
	for _, grace := range []time.Duration{0, time.Second} {
		sb := l.create(atoll.Spec{})
		_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", beatScript}})
		l.must("exec", err)
		l.awaitBeat(sb)
		sentry := l.sandboxProcesses(sb)["runsc-sandbox"]
		l.suspendProcess(sentry)
		defer func() { _ = unix.Kill(sentry, unix.SIGCONT) }()
		all, stopped = append(all, sb), append(stopped, runAsync(func() error { return sb.Stop(l.ctx(), grace) }))
	}
	for i, sb := range all {
		wantKind(t, "stop", <-stopped[i], atoll.ErrTimeout, "does not answer")
		l.must("go on", unix.Kill(l.sandboxProcesses(sb)["runsc-sandbox"], unix.SIGCONT))
		l.awaitBeat(sb)
		if got := l.run(sb, "echo", "works"); got != "works" {
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
	sb := l.create(atoll.Spec{})
	l.sh(sb, "echo kept > /root/file; echo work > /work/file")
	_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", beatScript}})
	l.must("exec", err)
	pids := l.sandboxProcesses(sb)
	l.must("delete", os.RemoveAll(filepath.Join(l.opts.RunDir, sb.ID())))
	stop := func() error { return sb.Stop(l.ctx(), 0) }
	for _, stopped := range []<-chan error{runAsync(stop), runAsync(stop), runAsync(stop)} {
		if err := <-stopped; err == nil || !strings.Contains(err.Error(), "could not be saved") {
			t.Errorf("one of three stops: %v", err)
		}
	}
	if st := l.status(sb); st.State != atoll.StateRunning {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	l.awaitBeat(sb)
	if got, err := atoll.ReadFile(l.ctx(), sb, "/work/file"); string(got) != "work\n" || err != nil {
		t.Errorf("its work directory: %q, %v", got, err)
	}
	l.checkRemoved(sb, pids)
}

// suspendProcess stops a process, and returns when it does nothing more.
func (l *lab) suspendProcess(pid int) {
	l.t.Helper()
	l.must("freeze", unix.Kill(pid, unix.SIGSTOP))
	l.poll(func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		l.must("list threads", err)
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
	sb, other := l.create(atoll.Spec{}), l.create(atoll.Spec{})
	l.sh(sb, "echo kept > /root/file")
	supervisor, pids := l.supervisorOf(sb), l.sandboxProcesses(other)
	for _, pid := range []int{supervisor, pids["supervisor"]} {
		l.suspendProcess(pid)
	}
	removed := runAsync(func() error { return other.Remove(l.ctx(), atoll.RemoveVolumes()) })
	err := sb.Stop(l.ctx(), 0)
	wantKind(t, "stop", err, atoll.ErrUnavailable, fmt.Sprint(supervisor), "does not answer")
	l.must("remove", <-removed)
	l.checkRemoved(other, pids)
	l.must("thaw", unix.Kill(supervisor, unix.SIGCONT))
	l.must("stop", sb.Stop(l.ctx(), 0))
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /root/file"); got != "kept" {
		t.Errorf("its files: %q", got)
	}
}
