//go:build linux

package gvisor_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

// A process that is killed while it starts a sandbox takes nothing of the sandbox along:
// neither the sandbox, nor its existing data.
func TestStartCutShort(t *testing.T) {
	const cuts = 6
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	l.sh(sb, "echo kept > file; echo kept > /root/file")
	for i := range cuts {
		l.must("stop", sb.Stop(l.ctx(), 0))
		cmd := l.startProvider("start", sb.ID())
		time.Sleep(time.Duration(10+10*i) * time.Millisecond) // at any point of the start
		killAndWait(cmd)
		l.poll(func() error { return sb.Start(l.ctx()) })
		if got := l.sh(sb, "cat file /root/file"); got != "kept\nkept" {
			t.Fatalf("after a start that was cut short: %q", got)
		}
	}
	l.must("remove", sb.Remove(l.ctx())) // the data volume stays
	for i := range cuts {
		cmd := l.startProvider("create", sb.ID())
		time.Sleep(time.Duration(10+10*i) * time.Millisecond)
		killAndWait(cmd)
		l.poll(func() error { // until the killed creation is gone
			made, err := l.Get(l.ctx(), sb.ID())
			if err == nil {
				err = made.Remove(l.ctx())
			}
			if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
				return err
			}
			made, err = l.Create(l.ctx(), &atoll.Spec{ID: sb.ID()})
			if err != nil {
				return err
			}
			if got := l.sh(made, "cat file"); got != "kept" {
				t.Fatalf("after a create that was cut short: %q", got)
			}
			return made.Remove(l.ctx())
		})
	}
	l.must("remove the volume", atoll.RemoveVolume(l.ctx(), l, atoll.DefaultProject, "data-"+sb.ID()))
}

// startProgram starts the sandbox args[0].
func startProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Get(context.Background(), args[0])
	if err != nil {
		return err
	}
	return sb.Start(context.Background())
}

// createProgram makes a sandbox with the id args[0].
func createProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Create(context.Background(), &atoll.Spec{ID: args[0]})
	return err
}

// runInTime fails the test if f takes so long that something must hang.
func (l *lab) runInTime(what string, f func() error) {
	l.t.Helper()
	select {
	case err := <-runAsync(f):
		l.must(what, err)
	case <-time.After(testenv.Scale(30 * time.Second)):
		l.t.Fatalf("%s hangs", what)
	}
}

// Root inside can suspend the guest, and nothing waits for it.
func TestGuestThatIsStopped(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	visit := func() {
		l.must("write", atoll.WriteFile(l.ctx(), sb, "/root/file", []byte("there"), 0))
	}
	visit()
	l.sh(sb, `for p in /proc/[0-9]*; do if tr '\0' ' ' < $p/cmdline | grep -q ^atoll-guest; then kill -STOP ${p#/proc/}; fi; done`)
	l.runInTime("snapshot", func() error {
		snap, err := atoll.TakeSnapshot(l.ctx(), sb)
		if err != nil {
			return err
		}
		return atoll.RemoveSnapshot(l.ctx(), l, snap.ID)
	})
	visit() // with another guest
	l.must("pause", atoll.Pause(l.ctx(), sb))
	l.runInTime("snapshot of a paused one", func() error {
		snap, err := atoll.TakeSnapshot(l.ctx(), sb)
		if err != nil {
			return err
		}
		return atoll.RemoveSnapshot(l.ctx(), l, snap.ID)
	})
	l.must("resume", atoll.Resume(l.ctx(), sb))
	visit()
	l.sh(sb, `for p in /proc/[0-9]*; do if tr '\0' ' ' < $p/cmdline | grep -q ^atoll-guest; then kill -STOP ${p#/proc/}; fi; done`)
	l.runInTime("stop", func() error { return sb.Stop(l.ctx(), 0) })
	l.runInTime("remove", func() error { return sb.Remove(l.ctx()) })
}

// A sentry that hangs, with calls to it in progress, can be removed. Another process removes it
// unless the call holds the sandbox's lock.
func TestSentryThatHangs(t *testing.T) {
	for _, tt := range []struct {
		name  string
		locks bool
		call  func(l *lab, sb atoll.Sandbox) error
	}{
		{"idle", false, func(*lab, atoll.Sandbox) error { return nil }},
		{"exec in flight", false, func(l *lab, sb atoll.Sandbox) error {
			return atoll.Run(l.ctx(), sb, &atoll.Command{Args: []string{"true"}})
		}},
		{"stop in flight", true, func(l *lab, sb atoll.Sandbox) error { return sb.Stop(l.ctx(), 0) }},
		{"snapshot in flight", true, func(l *lab, sb atoll.Sandbox) error {
			_, err := atoll.TakeSnapshot(l.ctx(), sb)
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			sb := l.create(atoll.Spec{})
			sentry := children(t, l.supervisorOf(sb))["runsc-sandbox"]
			l.must("stop the sentry", unix.Kill(sentry, unix.SIGSTOP))
			_ = runAsync(func() error { return tt.call(l, sb) })
			time.Sleep(100 * time.Millisecond) // long enough for it to hang as well
			other := openLab(t, l.opts)
			same, err := other.Get(l.ctx(), sb.ID())
			l.must("get", err)
			if tt.locks {
				same = sb
			}
			l.runInTime("remove", func() error { return same.Remove(l.ctx(), atoll.RemoveVolumes()) })
			l.awaitGone(map[string]int{"sentry": sentry})
		})
	}
}

// A sentry that hangs while its files are saved makes the stop fail, and the sandbox can be
// removed.
func TestSentryThatHangsWhileItSaves(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	l.sh(sb, "mkdir /dir && cd /dir && seq 20000 | xargs touch") // its index takes a while
	savesFiles := func(supervisor int) bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", supervisor))
		return slices.ContainsFunc(fds, func(fd string) bool {
			target, err := os.Readlink(fd)
			return err == nil && strings.Contains(target, "/.index-")
		})
	}
	var stopped <-chan error
	var sentry int
	l.poll(func() error {
		supervisor := l.supervisorOf(sb)
		sentry = children(t, supervisor)["runsc-sandbox"]
		stopped = runAsync(func() error { return sb.Stop(l.ctx(), 0) })
		for !savesFiles(supervisor) {
			select {
			case err := <-stopped: // this test was too slow
				l.must("stop", err)
				l.must("start", sb.Start(l.ctx()))
				return errors.New("the stop was not caught while it saved files")
			case <-time.After(time.Millisecond):
			}
		}
		return unix.Kill(sentry, unix.SIGSTOP)
	})
	l.runInTime("remove", func() error { return sb.Remove(l.ctx(), atoll.RemoveVolumes()) })
	wantKind(t, "stop", <-stopped, atoll.ErrTimeout, "does not answer")
	l.awaitGone(map[string]int{"sentry": sentry})
}

// gVisor does not run files beside the executable in place of its own parts.
func TestNothingBesideTheHelperIsRun(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	l := newLab(t, func(o *gvisor.Options) {
		helper, from := filepath.Join(dir, "helper"), cmp.Or(o.Helper, "/proc/self/exe")
		if err := copyFile(helper, from); err != nil {
			t.Fatal(err)
		}
		o.Helper = helper
	})
	if err := os.Mkdir(filepath.Join(dir, "gvisor-bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gvisor_sentry", "gvisor-sentry-prewarmer", "checkpointgofer", "gvisor_sentry_plugin_stack"} {
		script := fmt.Sprintf("#!/bin/sh\necho %s >> %s\n", name, ran)
		if err := os.WriteFile(filepath.Join(dir, "gvisor-bin", name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sb := l.create(atoll.Spec{})
	l.sh(sb, "true")
	snap, err := atoll.TakeSnapshot(l.ctx(), sb)
	l.must("snapshot", err)
	l.must("remove snapshot", atoll.RemoveSnapshot(l.ctx(), l, snap.ID))
	if names, err := os.ReadFile(ran); err == nil {
		t.Errorf("was run: %s", names)
	}
}

// The sandbox does not keep open what the caller has open by accident.
func TestSupervisorInheritsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var fds [8]int
	for i := range fds { // so that some are above those that a supervisor inherits on purpose
		fd, err := unix.Open(path, unix.O_RDONLY, 0) // not closed on exec
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	l := newLab(t)
	supervisor := l.supervisorOf(l.create(atoll.Spec{}))
	pids := children(t, supervisor)
	pids["supervisor"] = supervisor
	for name, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		for _, fd := range dirEntries(t, dir) {
			if to, err := os.Readlink(filepath.Join(dir, fd)); err == nil && to == path {
				t.Errorf("%s has %s open as %s", name, to, fd)
			}
		}
	}
}

// Running sandboxes do not keep mounted what the host unmounts, and what the host mounts
// does not appear in them.
func TestHostMountsAreNotHeld(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	mount := func(path string) {
		t.Helper()
		if err := unix.Mount("atoll-test", path, "tmpfs", 0, ""); err != nil {
			t.Skipf("mount: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
	mount(dir)
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	device := filepath.Join(dir, "device")
	if err := os.Mkdir(device, 0o755); err != nil {
		t.Fatal(err)
	}
	mount(device)
	l := newLab(t)
	supervisor := l.supervisorOf(l.create(atoll.Spec{}))
	mounts := func() string {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", supervisor))
		l.must("mounts of the supervisor", err)
		return string(data)
	}
	if !strings.Contains(mounts(), " "+device+" ") {
		t.Fatal("it was not mounted in the supervisor: this test shows nothing")
	}
	l.must("unmount", unix.Unmount(device, 0))
	if strings.Contains(mounts(), " "+device+" ") {
		t.Error("it is still mounted in the supervisor")
	}
}

// A program that is a named pipe starts when somebody writes to it, perhaps never: its
// caller waits as long as its ctx allows, and a removal does not wait.
func TestProgramThatIsAPipe(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	l.sh(sb, "mkfifo -m 755 /root/pipe")
	_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", "until [ -e write ]; do sleep 0.05; done; echo > /root/pipe"}})
	l.must("exec", err)
	run := func() error {
		ctx, cancel := context.WithTimeout(l.ctx(), testenv.Scale(300*time.Millisecond))
		defer cancel()
		_, err := sb.Exec(ctx, &atoll.Command{Args: []string{"/root/pipe"}})
		return err
	}
	if err := run(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec: %v", err)
	}
	l.must("write", atoll.WriteFile(l.ctx(), sb, "write", nil, 0))
	if got := l.run(sb, "echo", "works"); got != "works" { // as soon as somebody has written
		t.Errorf("afterwards: %q", got)
	}
	if err := run(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec: %v", err)
	}
	l.runInTime("remove", func() error { return sb.Remove(l.ctx(), atoll.RemoveVolumes()) })
}

// Accounts that are a named pipe block nothing but the look-up of users.
func TestAccountsThatAreAPipe(t *testing.T) {
	testenv.Need(t, testenv.Root) // others have no users
	l := newLab(t)
	sb := l.create(atoll.Spec{User: "nobody"})
	l.must("exec", atoll.Run(l.ctx(), sb, &atoll.Command{Args: []string{"sh", "-c", "rm /etc/passwd; mkfifo /etc/passwd"}, User: "root"}))
	_, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"true"}})
	wantKind(t, "exec", err, atoll.ErrInvalid, "/etc/passwd", "is it a regular file?")
	l.must("exec as root", atoll.Run(l.ctx(), sb, &atoll.Command{Args: []string{"true"}, User: "root"}))
	l.must("pause", atoll.Pause(l.ctx(), sb))
	l.must("resume", atoll.Resume(l.ctx(), sb))
	l.must("stop", sb.Stop(l.ctx(), 0))
	wantKind(t, "start", sb.Start(l.ctx()), atoll.ErrInvalid, "/etc/passwd", "is it a regular file?")
}
