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

// beat is a program that shows that its sandbox runs: the file grows.
const beat = "while :; do echo >> /work/beat; sleep 0.02; done"

// beats waits until that program has done something more.
func (l *lab) beats(sb atoll.Sandbox) {
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

// processes returns the supervisor, the sentry and the gofer of the sandbox.
func (l *lab) processes(sb atoll.Sandbox) map[string]int {
	l.t.Helper()
	supervisor := l.supervisorOf(sb)
	pids := children(l.t, supervisor)
	if pids["runsc-sandbox"] == 0 || pids["runsc-gofer"] == 0 {
		l.t.Fatalf("processes of the supervisor: %v", pids)
	}
	pids["supervisor"] = supervisor
	return pids
}

// removed removes the sandbox and checks that it has left nothing running and
// no cgroup; what it left on disk is found when the test ends.
func (l *lab) removed(sb atoll.Sandbox, pids map[string]int) {
	l.t.Helper()
	l.remove(sb)
	l.gone(pids)
	if left := cgroups(l.t, l.opts.Cgroup+sb.ID()); len(left) > 0 {
		l.t.Errorf("left behind: %v", left)
	}
}

// A stop that finds no space for the files of the root file system fails, and
// the sandbox goes on with them. It can be removed, or stopped when there is
// space again.
func TestStopOnFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	need(t)
	opts := fresh(t)
	onDisk(t, opts.Dir, "64m")
	l := openLab(t, opts)
	sb := l.create(atoll.Spec{})
	full := l.create(atoll.Spec{})
	for _, sb := range []atoll.Sandbox{sb, full} {
		l.sh(sb, "echo kept > /root/file; head -c 5000000 /dev/urandom > /root/much; md5sum /root/much > /root/sum")
		_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", beat}})
		l.must("exec", err)
		l.beats(sb)
	}
	l.fails(sb, "head -c 100000000 /dev/zero > /work/big")
	err := sb.Stop(l.ctx(), 0)
	wantKind(t, "stop", err, atoll.ErrExhausted, "could not be saved", "no space left")
	if st := l.status(sb); st.State != atoll.StateRunning || !st.Ready {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	if got := l.sh(sb, "cat /root/file; md5sum -c /root/sum"); got != "kept\n/root/much: OK" {
		t.Errorf("its files: %q", got)
	}
	l.removed(full, l.processes(full))
	l.must("make space", os.Remove(filepath.Join(opts.Dir, "volumes", "default", "data-"+sb.ID(), "big")))
	l.beats(sb)
	l.must("stop", sb.Stop(l.ctx(), 0))
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /root/file; md5sum -c /root/sum"); got != "kept\n/root/much: OK" {
		t.Errorf("its files after stop and start: %q", got)
	}
	l.fails(sb, "head -c 100000000 /dev/zero > /work/big")
	l.removed(sb, l.processes(sb))
	l.must("close", l.Close())
	nothingLeft(t, opts) // now, before the disk is gone
}

// A main process that has ended, and whose sandbox's files cannot be saved, ends
// its sandbox when there is space again, and not before.
func TestMainEndsOnFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	need(t)
	opts := fresh(t)
	onDisk(t, opts.Dir, "64m")
	l := openLab(t, opts)
	sb := l.create(atoll.Spec{Cmd: []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"}})
	l.sh(sb, "echo kept > /root/file; head -c 5000000 /dev/urandom > /root/much")
	ballast := filepath.Join(opts.Dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("ballast: %v", err)
	}
	wantKind(t, "stop", sb.Stop(l.ctx(), 5*time.Second), atoll.ErrExhausted, "could not be saved")
	if st := l.status(sb); st.State != atoll.StateRunning {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	l.must("make space", os.Remove(ballast))
	if st := l.becomes(sb, atoll.StateStopped); st.Exit == nil || st.Exit.Code != 0 || st.Reason != "" {
		t.Errorf("its exit is %v (%s)", st.Exit, st.Reason)
	}
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /root/file"); got != "kept" {
		t.Errorf("its file: %q", got)
	}
	l.remove(sb)
	l.must("close", l.Close())
	nothingLeft(t, opts) // now, before the disk is gone
}

// A stop that fails because the sentry does not answer does nothing later either,
// when it answers again.
func TestStopThatComesTooLate(t *testing.T) {
	l := newLab(t)
	var stopped []<-chan error
	var all []atoll.Sandbox
	for _, grace := range []time.Duration{0, time.Second} {
		sb := l.create(atoll.Spec{})
		_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", beat}})
		l.must("exec", err)
		l.beats(sb)
		sentry := l.processes(sb)["runsc-sandbox"]
		l.freeze(sentry)
		defer func() { _ = unix.Kill(sentry, unix.SIGCONT) }()
		all, stopped = append(all, sb), append(stopped, begin(func() error { return sb.Stop(l.ctx(), grace) }))
	}
	for i, sb := range all {
		wantKind(t, "stop", <-stopped[i], atoll.ErrTimeout, "does not answer")
		l.must("go on", unix.Kill(l.processes(sb)["runsc-sandbox"], unix.SIGCONT))
		l.beats(sb)
		if got := l.run(sb, "echo", "works"); got != "works" {
			t.Errorf("afterwards: %q", got)
		}
	}
}

// onDisk makes dir a file system of that size.
func onDisk(t *testing.T, dir, size string) {
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

// When gVisor's own state was deleted beneath a sandbox, what runs in it goes
// on, and a stop, which can then reach nothing to save, fails rather than lose
// its files. It can be removed.
func TestRunDirectoryDeleted(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	l.sh(sb, "echo kept > /root/file; echo work > /work/file")
	_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", beat}})
	l.must("exec", err)
	pids := l.processes(sb)
	l.must("delete", os.RemoveAll(filepath.Join(l.opts.RunDir, sb.ID())))
	stop := func() error { return sb.Stop(l.ctx(), 0) }
	for _, stopped := range []<-chan error{begin(stop), begin(stop), begin(stop)} {
		if err := <-stopped; err == nil || !strings.Contains(err.Error(), "could not be saved") {
			t.Errorf("one of three stops: %v", err)
		}
	}
	if st := l.status(sb); st.State != atoll.StateRunning {
		t.Errorf("after a stop that failed: %s (%s)", st.State, st.Reason)
	}
	l.beats(sb)
	if got, err := atoll.ReadFile(l.ctx(), sb, "/work/file"); string(got) != "work\n" || err != nil {
		t.Errorf("its work directory: %q, %v", got, err)
	}
	l.removed(sb, pids)
}

// freeze stops a process, and returns when it does nothing more.
func (l *lab) freeze(pid int) {
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

// A supervisor that does not answer could still save its sandbox's files: a stop
// fails and names it, and succeeds when it answers again. One whose sandbox is
// to be removed is ended.
func TestSupervisorThatHangs(t *testing.T) {
	l := newLab(t)
	sb, other := l.create(atoll.Spec{}), l.create(atoll.Spec{})
	l.sh(sb, "echo kept > /root/file")
	supervisor, pids := l.supervisorOf(sb), l.processes(other)
	for _, pid := range []int{supervisor, pids["supervisor"]} {
		l.freeze(pid)
	}
	removed := begin(func() error { return other.Remove(l.ctx(), atoll.RemoveVolumes()) })
	err := sb.Stop(l.ctx(), 0)
	wantKind(t, "stop", err, atoll.ErrUnavailable, fmt.Sprint(supervisor), "does not answer")
	l.must("remove", <-removed)
	l.removed(other, pids)
	l.must("thaw", unix.Kill(supervisor, unix.SIGCONT))
	l.must("stop", sb.Stop(l.ctx(), 0))
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /root/file"); got != "kept" {
		t.Errorf("its files: %q", got)
	}
}
