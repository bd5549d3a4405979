//go:build linux

package vfork

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
)

// newScript returns an empty script that the test closes.
func newScript(t testing.TB) *Script {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// addCommand adds the calls that execute a command with its output to a pipe, and returns the end to read.
func addCommand(t testing.TB, s *Script, args ...string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	s.Do("stdout", unix.SYS_DUP3, uint64(w.Fd()), 1, 0)
	s.Do("execute", unix.SYS_EXECVE, s.AddText(args[0]), s.AddTexts(args), s.AddTexts([]string{"A=b"}))
	return r
}

// runScript runs the script in a group, if there is one, and returns the output and the PID of its program after its end.
func runScript(t testing.TB, s *Script, r, group *os.File) (string, int) {
	t.Helper()
	pid, err := s.Run(group)
	if err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
		t.Fatalf("wait: %v, status %#x", err, status)
	}
	buf := make([]byte, 4096)
	n, err := r.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(buf[:n])), pid
}

// A child executes a program with arguments and an environment.
func TestRun(t *testing.T) {
	s := newScript(t)
	r := addCommand(t, s, "/bin/sh", "-c", "echo $A $0 $$", "x")
	if got, pid := runScript(t, s, r, nil); got != "b x "+strconv.Itoa(pid) {
		t.Errorf("got %q", got)
	}
}

// A clone in new namespaces is a child of the caller, and the process between them is gone.
func TestClone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces without a user namespace")
	}
	s := newScript(t)
	s.Clone("clone", unix.CLONE_NEWPID|unix.CLONE_NEWUTS)
	name := []byte("inside")
	s.Do("host name", unix.SYS_SETHOSTNAME, s.AddBytes(name), uint64(len(name)))
	r := addCommand(t, s, "/bin/sh", "-c", "echo $$ $(uname -n)")
	if got, _ := runScript(t, s, r, nil); got != "1 inside" {
		t.Errorf("got %q", got)
	}
	mustHaveNoChild(t)
}

// A clone enters a new time namespace, also where it cannot share memory then.
func TestCloneIntoTimeNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces without a user namespace")
	}
	s := newScript(t)
	s.Do("time namespace", unix.SYS_UNSHARE, unix.CLONE_NEWTIME)
	offsets := []byte("boottime 1000000000 0")
	s.Do("close", unix.SYS_CLOSE, 0)
	s.Do("open", unix.SYS_OPENAT, ^uint64(99), s.AddText("/proc/self/timens_offsets"), unix.O_WRONLY)
	s.Do("offsets", unix.SYS_WRITE, 0, s.AddBytes(offsets), uint64(len(offsets)))
	s.Clone("clone", unix.CLONE_NEWPID)
	r := addCommand(t, s, "/bin/cat", "/proc/uptime")
	if got, _ := runScript(t, s, r, nil); len(got) < len("1000000000.00 ") || got[0] != '1' {
		t.Errorf("uptime %q", got)
	}
	mustHaveNoChild(t)
}

func mustHaveNoChild(t *testing.T) {
	t.Helper()
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}

// The error of a call names it, whichever process makes it, and no process is left.
func TestErrors(t *testing.T) {
	for _, clones := range []bool{false, true} {
		s := newScript(t)
		if clones {
			s.Clone("clone", 0)
		}
		s.Try(unix.SYS_CHDIR, s.AddText("/none"))
		s.Do("directory", unix.SYS_CHDIR, s.AddText("/none"))
		addCommand(t, s, "/bin/true")
		_, err := s.Run(nil)
		var e *syslist.Error
		if !errors.As(err, &e) || e.What != "directory" || e.Err != unix.ENOENT {
			t.Errorf("got %v", err)
		}
		mustHaveNoChild(t)
	}
	s := newScript(t)
	addCommand(t, s, "/none")
	if _, err := s.Run(nil); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a missing program: %v", err)
	}
	s = newScript(t)
	s.AddBytes(make([]byte, bytesSize+1))
	if _, err := s.Run(nil); !errors.Is(err, unix.E2BIG) {
		t.Errorf("a script that is too long: %v", err)
	}
}

// The collector and the scheduler survive children while much else happens.
func TestBusyParent(t *testing.T) {
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = bytes.Repeat([]byte{1}, 1<<20)
				runtime.GC()
			}
		}
	}()
	defer func() { close(stop); <-done }()
	for range 50 {
		s := newScript(t)
		addCommand(t, s, "/bin/true")
		pid, err := s.Run(nil)
		if err != nil {
			t.Fatal(err)
		}
		reapChild(pid)
	}
}
