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
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A process that is killed while it starts a sandbox takes nothing of the sandbox along:
// neither the sandbox, nor its existing data.
func TestStartCutShort(t *testing.T) {
	const cuts = 6
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "echo kept > file; echo kept > /root/file")
	for i := range cuts {
		l.Must("stop", sb.Stop(l.Context(), 0))
		cmd := l.startProvider("start", sb.ID())
		time.Sleep(time.Duration(10+10*i) * time.Millisecond) // at any point of the start
		supervisedtest.KillAndWait(cmd)
		l.Poll(func() error { return sb.Start(l.Context()) })
		if got := l.Sh(sb, "cat file /root/file"); got != "kept\nkept" {
			t.Fatalf("after a start that was cut short: %q", got)
		}
	}
	l.Must("remove", sb.Remove(l.Context())) // the data volume stays
	for i := range cuts {
		cmd := l.startProvider("create", sb.ID())
		time.Sleep(time.Duration(10+10*i) * time.Millisecond)
		supervisedtest.KillAndWait(cmd)
		l.Poll(func() error { // until the killed creation is gone
			made, err := l.Get(l.Context(), sb.ID())
			if err == nil {
				err = made.Remove(l.Context())
			}
			if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
				return err
			}
			made, err = l.Create(l.Context(), &atoll.Spec{ID: sb.ID()})
			if err != nil {
				return err
			}
			if got := l.Sh(made, "cat file"); got != "kept" {
				t.Fatalf("after a create that was cut short: %q", got)
			}
			return made.Remove(l.Context())
		})
	}
	l.Must("remove the volume", atoll.RemoveVolume(l.Context(), l, atoll.DefaultProject, "data-"+sb.ID()))
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
	l.T.Helper()
	select {
	case err := <-supervisedtest.RunAsync(f):
		l.Must(what, err)
	case <-time.After(testenv.Scale(30 * time.Second)):
		l.T.Fatalf("%s hangs", what)
	}
}

// Root inside can suspend the guest, and nothing waits for it.
func TestGuestThatIsStopped(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	visit := func() {
		l.Must("write", atoll.WriteFile(l.Context(), sb, "/root/file", []byte("there"), 0))
	}
	visit()
	l.Sh(sb, `for p in /proc/[0-9]*; do if tr '\0' ' ' < $p/cmdline | grep -q ^atoll-guest; then kill -STOP ${p#/proc/}; fi; done`)
	l.runInTime("snapshot", func() error {
		snap, err := atoll.TakeSnapshot(l.Context(), sb)
		if err != nil {
			return err
		}
		return atoll.RemoveSnapshot(l.Context(), l, snap.ID)
	})
	visit() // with another guest
	l.Must("pause", atoll.Pause(l.Context(), sb))
	l.runInTime("snapshot of a paused one", func() error {
		snap, err := atoll.TakeSnapshot(l.Context(), sb)
		if err != nil {
			return err
		}
		return atoll.RemoveSnapshot(l.Context(), l, snap.ID)
	})
	l.Must("resume", atoll.Resume(l.Context(), sb))
	visit()
	l.Sh(sb, `for p in /proc/[0-9]*; do if tr '\0' ' ' < $p/cmdline | grep -q ^atoll-guest; then kill -STOP ${p#/proc/}; fi; done`)
	l.runInTime("stop", func() error { return sb.Stop(l.Context(), 0) })
	l.runInTime("remove", func() error { return sb.Remove(l.Context()) })
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
			return atoll.Run(l.Context(), sb, &atoll.Command{Args: []string{"true"}})
		}},
		{"stop in flight", true, func(l *lab, sb atoll.Sandbox) error { return sb.Stop(l.Context(), 0) }},
		{"snapshot in flight", true, func(l *lab, sb atoll.Sandbox) error {
			_, err := atoll.TakeSnapshot(l.Context(), sb)
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			sb := l.NewSandbox(atoll.Spec{})
			sentry := supervisedtest.Children(t, l.SupervisorOf(sb))["runsc-sandbox"]
			l.Must("stop the sentry", unix.Kill(sentry, unix.SIGSTOP))
			_ = supervisedtest.RunAsync(func() error { return tt.call(l, sb) })
			time.Sleep(100 * time.Millisecond) // long enough for it to hang as well
			other := openLab(t, l.opts)
			same, err := other.Get(l.Context(), sb.ID())
			l.Must("get", err)
			if tt.locks {
				same = sb
			}
			l.runInTime("remove", func() error { return same.Remove(l.Context(), atoll.RemoveVolumes()) })
			l.AwaitGone(map[string]int{"sentry": sentry})
		})
	}
}

// A sentry that hangs while its files are saved makes the stop fail, and the sandbox can be
// removed.
func TestSentryThatHangsWhileItSaves(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "mkdir /dir && cd /dir && seq 20000 | xargs touch") // its index takes a while
	savesFiles := func(supervisor int) bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", supervisor))
		return slices.ContainsFunc(fds, func(fd string) bool {
			target, err := os.Readlink(fd)
			return err == nil && strings.Contains(target, "/.index-")
		})
	}
	var stopped <-chan error
	var sentry int
	l.Poll(func() error {
		supervisor := l.SupervisorOf(sb)
		sentry = supervisedtest.Children(t, supervisor)["runsc-sandbox"]
		stopped = supervisedtest.RunAsync(func() error { return sb.Stop(l.Context(), 0) })
		for !savesFiles(supervisor) {
			select {
			case err := <-stopped: // this test was too slow
				l.Must("stop", err)
				l.Must("start", sb.Start(l.Context()))
				return errors.New("the stop was not caught while it saved files")
			case <-time.After(time.Millisecond):
			}
		}
		return unix.Kill(sentry, unix.SIGSTOP)
	})
	l.runInTime("remove", func() error { return sb.Remove(l.Context(), atoll.RemoveVolumes()) })
	supervisedtest.WantKind(t, "stop", <-stopped, atoll.ErrTimeout, "does not answer")
	l.AwaitGone(map[string]int{"sentry": sentry})
}

// gVisor does not run files beside the executable in place of its own parts.
func TestNothingBesideTheHelperIsRun(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	l := newLab(t, func(o *gvisor.Options) {
		helper, from := filepath.Join(dir, "helper"), cmp.Or(o.Helper, "/proc/self/exe")
		if err := supervisedtest.CopyProgram(helper, from); err != nil {
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
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "true")
	snap, err := atoll.TakeSnapshot(l.Context(), sb)
	l.Must("snapshot", err)
	l.Must("remove snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID))
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
	supervisor := l.SupervisorOf(l.NewSandbox(atoll.Spec{}))
	pids := supervisedtest.Children(t, supervisor)
	pids["supervisor"] = supervisor
	for name, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		for _, fd := range supervisedtest.ListDir(t, dir) {
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
	supervisor := l.SupervisorOf(l.NewSandbox(atoll.Spec{}))
	mounts := func() string {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", supervisor))
		l.Must("mounts of the supervisor", err)
		return string(data)
	}
	if !strings.Contains(mounts(), " "+device+" ") {
		t.Fatal("it was not mounted in the supervisor: this test shows nothing")
	}
	l.Must("unmount", unix.Unmount(device, 0))
	if strings.Contains(mounts(), " "+device+" ") {
		t.Error("it is still mounted in the supervisor")
	}
}

// A program that is a named pipe starts when somebody writes to it, perhaps never: its
// caller waits as long as its ctx allows, and a removal does not wait.
func TestProgramThatIsAPipe(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "mkfifo -m 755 /root/pipe")
	_, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sh", "-c", "until [ -e write ]; do sleep 0.05; done; echo > /root/pipe"}})
	l.Must("exec", err)
	run := func() error {
		ctx, cancel := context.WithTimeout(l.Context(), testenv.Scale(300*time.Millisecond))
		defer cancel()
		_, err := sb.Exec(ctx, &atoll.Command{Args: []string{"/root/pipe"}})
		return err
	}
	if err := run(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec: %v", err)
	}
	l.Must("write", atoll.WriteFile(l.Context(), sb, "write", nil, 0))
	if got := l.Run(sb, &atoll.Command{Args: []string{"echo", "works"}}); got != "works" { // as soon as somebody has written
		t.Errorf("afterwards: %q", got)
	}
	if err := run(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec: %v", err)
	}
	l.runInTime("remove", func() error { return sb.Remove(l.Context(), atoll.RemoveVolumes()) })
}

// Accounts that are a named pipe block nothing but the look-up of users.
func TestAccountsThatAreAPipe(t *testing.T) {
	testenv.Need(t, testenv.Root) // others have no users
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{User: "nobody"})
	l.Must("exec", atoll.Run(l.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", "rm /etc/passwd; mkfifo /etc/passwd"}, User: "root"}))
	_, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"true"}})
	supervisedtest.WantKind(t, "exec", err, atoll.ErrInvalid, "/etc/passwd", "is it a regular file?")
	l.Must("exec as root", atoll.Run(l.Context(), sb, &atoll.Command{Args: []string{"true"}, User: "root"}))
	l.Must("pause", atoll.Pause(l.Context(), sb))
	l.Must("resume", atoll.Resume(l.Context(), sb))
	l.Must("stop", sb.Stop(l.Context(), 0))
	supervisedtest.WantKind(t, "start", sb.Start(l.Context()), atoll.ErrInvalid, "/etc/passwd", "is it a regular file?")
}
