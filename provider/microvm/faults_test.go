//go:build linux

package microvm_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// Errors inside reach the caller, and do not prevent access to the disk.
func TestFaultsInside(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{Resources: atoll.Resources{Disk: 64 << 20}})

	// Nobody inside can end the guest, which is the first process.
	l.sh(sb, "kill -KILL 1; kill -SEGV 1; sleep 0.2")
	if got := l.sh(sb, "echo still there"); got != "still there" {
		t.Errorf("after the guest was killed: %q", got)
	}

	// A full disk concerns only its writer, and the sandbox can be stopped and started.
	out := l.sh(sb, "dd if=/dev/zero of=/root/big bs=1M 2>&1 || true; echo kept > /work/kept; echo still there")
	if !strings.Contains(out, "No space left") || !strings.HasSuffix(out, "still there") {
		t.Errorf("a full disk: %s", out)
	}
	l.must("stop", sb.Stop(l.ctx(), 0))
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "stat -c %s /root/big; rm /root/big; echo more > /root/small; cat /work/kept"); !strings.HasSuffix(got, "\nkept") {
		t.Errorf("after a stop with a full disk: %q", got)
	}

	// A kernel that panics has failed, with its last words, and what was written is there.
	waiter, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sleep", "1000"}})
	l.must("exec", err)
	_, err = atoll.Output(l.ctx(), sb, &atoll.Command{Args: []string{"sh", "-c", "sync; echo c > /proc/sysrq-trigger; sleep 1000"}})
	if _, killed := errors.AsType[*atoll.ExitError](err); !killed && atoll.KindOf(err) != atoll.ErrStopped {
		t.Errorf("the command that had the kernel panic: %v", err)
	}
	st := l.becomes(sb, atoll.StateFailed)
	if !strings.Contains(st.Reason, "crashed") || !strings.Contains(st.Reason, "panic") {
		t.Errorf("the reason is %q", st.Reason)
	}
	if exit, err := waiter.Wait(l.ctx()); err == nil && exit.Signal != atoll.SIGKILL {
		t.Errorf("a command of then exited with %+v", exit)
	}
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /work/kept /root/small"); got != "kept\nmore" {
		t.Errorf("after a panic: %q", got)
	}
}

// A machine without room for its disk waits until there is, and nothing is lost; meanwhile requests
// get an error that says so.
func TestNoRoom(t *testing.T) {
	if !testenv.InOwnProcess(t) {
		return
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	answer := max(10*time.Second, testenv.Scale(6*time.Second)) // long enough for a guest that is emulated, and passes in the test
	l := newLab(t, func(o microvm.Options) microvm.Options {
		o.Dir = filepath.Join(dir, "s")
		return o.WithAnswer(answer)
	})
	sb := l.create(atoll.Spec{})
	var out bytes.Buffer
	writer, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", "head -c 32M /dev/zero | tr '\\0' x > /root/big && sync && tr -d x < /root/big | wc -c && stat -c %s /root/big"}, Stdout: &out})
	l.must("exec", err)
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"true"}})
		cancel()
		if atoll.KindOf(err) == atoll.ErrExhausted {
			wantKind(t, "exec", err, atoll.ErrExhausted, "make room")
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("the machine goes on: %v", err)
		}
	}
	wantKind(t, "stop", sb.Stop(l.ctx(), 0), atoll.ErrExhausted, "make room")
	time.Sleep(2 * answer)
	l.becomes(sb, atoll.StateRunning)
	l.must("make room", unix.Mount("", dir, "", unix.MS_REMOUNT, "size=256m"))
	if exit, err := writer.Wait(l.ctx()); err != nil || exit.Code != 0 || out.String() != "0\n33554432\n" {
		t.Errorf("the writer ended with %+v, %v: %q", exit, err, &out)
	}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) { // it is known a while later that it goes on
		_, err := atoll.Output(l.ctx(), sb, &atoll.Command{Args: []string{"rm", "/root/big"}})
		if atoll.KindOf(err) != atoll.ErrExhausted || time.Now().After(end) {
			l.must("exec", err)
			break
		}
	}
	l.must("stop", sb.Stop(l.ctx(), 0))
}

// A machine that stands still is detected, and calls that wait for it get an error.
func TestSilentGuest(t *testing.T) {
	answer := max(8*time.Second, testenv.Scale(5*time.Second))
	need(t)
	everything(t, "it takes 50 s")
	l := newLab(t, func(o microvm.Options) microvm.Options { return o.WithAnswer(answer) })
	sb := l.create(atoll.Spec{})
	// One that is paused does not stand still.
	l.must("pause", atoll.Pause(l.ctx(), sb))
	time.Sleep(2 * answer)
	l.must("resume", atoll.Resume(l.ctx(), sb))
	l.sh(sb, "true")

	waiter, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sleep", "1000"}})
	l.must("exec", err)
	l.must("SIGSTOP", unix.Kill(machineOf(t, sb), unix.SIGSTOP))
	begin := time.Now()
	_, err = sb.Exec(l.ctx(), &atoll.Command{Args: []string{"true"}})
	wantKind(t, "exec", err, atoll.ErrStopped)
	if took := time.Since(begin); took > answer+testenv.Scale(8*time.Second) {
		t.Errorf("that took %v, where the guest has %v to answer", took, answer)
	}
	if st := l.becomes(sb, atoll.StateFailed); !strings.Contains(st.Reason, "has not answered") {
		t.Errorf("the reason is %q", st.Reason)
	}
	if exit, err := waiter.Wait(l.ctx()); err == nil && exit.Signal != atoll.SIGKILL {
		t.Errorf("a command of then exited with %+v", exit)
	}
	if left := machines(t, sb.ID()); len(left) > 0 {
		t.Errorf("it goes on: %v", left)
	}
}

// Whenever QEMU dies while a sandbox is made, there is none, and nothing of it, or it is one
// that has failed.
func TestMachineKilledAtBirth(t *testing.T) {
	delays := []time.Duration{0, 2500 * time.Millisecond}
	if testenv.RunAll() {
		delays = append(delays, time.Second, 4*time.Second)
	}
	for _, after := range delays {
		t.Run(after.String(), func(t *testing.T) {
			l := newLab(t)
			providertest.CheckLeaks(t, providertest.Leaks(leaks))
			id := atoll.NewID()
			killed := make(chan struct{})
			ctx, cancel := context.WithCancel(l.ctx())
			go func() {
				defer close(killed)
				for ctx.Err() == nil {
					if pids := machines(t, id); len(pids) > 0 {
						time.Sleep(after)
						for _, pid := range machines(t, id) {
							_ = unix.Kill(pid, unix.SIGKILL)
						}
						return
					}
					time.Sleep(5 * time.Millisecond)
				}
			}()
			sb, err := l.Create(l.ctx(), &atoll.Spec{ID: id, Cmd: []string{"sleep", "1000"}})
			if err != nil {
				cancel()
				if kind := atoll.KindOf(err); kind != atoll.ErrUnavailable && kind != atoll.ErrStopped && kind != atoll.ErrInternal {
					t.Errorf("create: %v (%q)", err, kind)
				}
				if _, err := l.Get(l.ctx(), id); atoll.KindOf(err) != atoll.ErrNotFound {
					t.Errorf("get: %v", err)
				}
				return
			}
			<-killed
			cancel()
			l.becomes(sb, atoll.StateFailed)
			l.must("remove", sb.Remove(l.ctx(), atoll.RemoveVolumes()))
		})
	}
}

// Many machines, a few at a time, leave nothing.
func TestManyLeaveNothing(t *testing.T) {
	const rounds, at = 5, 4
	need(t)
	everything(t, "20 machines take 100 s")
	l := newLab(t)
	providertest.CheckLeaks(t, providertest.Leaks(leaks), providertest.Slow(2))
	for range rounds {
		done := make(chan error)
		for range at {
			go func() {
				sb, err := l.Create(l.ctx(), &atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}})
				if err == nil {
					err = errors.Join(atoll.Run(l.ctx(), sb, &atoll.Command{Args: []string{"true"}}), sb.Remove(l.ctx(), atoll.RemoveVolumes()))
				}
				done <- err
			}()
		}
		for range at {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	if left := leftOnDisk(t, l.opts); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, " "))
	}
}
