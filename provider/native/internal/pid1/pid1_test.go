//go:build linux

package pid1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// startInit starts a first process as a child of the test, which is not the first of a PID namespace.
func startInit(t *testing.T) (*Init, *exec.Cmd) {
	t.Helper()
	data, err := Program(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(name, data, 0o755); err != nil {
		t.Fatal(err)
	}
	line, err := NewLine()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name)
	cmd.ExtraFiles = []*os.File{line.Socket, line.Memory}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in, err := line.Connect(func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return in, cmd
}

// runCommand runs a command to its end, and returns its output.
func runCommand(in *Init, cmd *Command) (string, unix.WaitStatus, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", 0, err
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", 0, err
	}
	defer null.Close()
	p, err := in.Start(context.Background(), cmd, [3]*os.File{null, w, w}, nil)
	w.Close()
	if err != nil {
		return "", 0, err
	}
	out, err := io.ReadAll(r)
	if err != nil {
		return "", 0, err
	}
	status, err := p.Wait()
	return strings.TrimSpace(string(out)), status, err
}

func shellCommand(text string) *Command {
	return &Command{
		Programs: []string{"/none/sh", "/bin/sh"}, Args: []string{"sh", "-c", text}, Env: []string{"PATH=/usr/bin:/bin", "A=b"}, Dir: "/tmp",
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}
}

// A command gets its arguments, environment, directory and streams, and nothing else is open in it.
func TestStart(t *testing.T) {
	in, _ := startInit(t)
	out, status, err := runCommand(in, shellCommand("echo $A; pwd; ls -l /proc/self/fd | grep -cE 'socket|memfd|signalfd'; cat /proc/$$/status | grep -c 'SigBlk:.*0000000000000000'; exit 3"))
	if want := "b\n/tmp\n0\n1"; err != nil || out != want || status.ExitStatus() != 3 {
		t.Errorf("%q, %d, %v; want %q, 3", out, status.ExitStatus(), err, want)
	}
}

// An error names the call, and the first process goes on.
func TestErrors(t *testing.T) {
	in, _ := startInit(t)
	for name, c := range map[string]struct {
		change func(*Command)
		want   error
	}{
		"no program":        {func(c *Command) { c.Programs = []string{"/none", "/none/too"} }, unix.ENOENT},
		"not executable":    {func(c *Command) { c.Programs = []string{"/none", "/etc/passwd", "/none"} }, unix.EACCES},
		"no directory":      {func(c *Command) { c.Dir = "/none" }, unix.ENOENT},
		"arguments too big": {func(c *Command) { c.Env = []string{"A=" + strings.Repeat("x", 1<<20)} }, unix.E2BIG},
		"list too big":      {func(c *Command) { c.Env = []string{"A=" + strings.Repeat("x", workSize)} }, unix.E2BIG},
	} {
		cmd := shellCommand("true")
		c.change(cmd)
		if _, _, err := runCommand(in, cmd); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if out, _, err := runCommand(in, shellCommand("echo yes")); err != nil || out != "yes" {
			t.Fatalf("after %s: %q, %v", name, out, err)
		}
	}
}

// Many commands at once each get their own exit.
func TestManyAtOnce(t *testing.T) {
	in, _ := startInit(t)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			out, status, err := runCommand(in, shellCommand(fmt.Sprintf("echo %d; exit %d", i, i)))
			if err != nil || out != fmt.Sprint(i) || status.ExitStatus() != i {
				t.Errorf("%d: %q, %d, %v", i, out, status.ExitStatus(), err)
			}
		})
	}
	all.Wait()
}

// A signal ends a process, and a process that has ended cannot get one.
func TestSignal(t *testing.T) {
	in, _ := startInit(t)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := in.Start(t.Context(), shellCommand("sleep 100"), [3]*os.File{null, null, null}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Signal(p.PID, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if status, err := p.Wait(); err != nil || status.Signal() != unix.SIGKILL {
		t.Errorf("%#x, %v", status, err)
	}
	if err := in.Signal(p.PID, unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
		t.Errorf("after its end: %v", err)
	}
}

// When the first process ends, so do calls and waits; and it ends with its client.
func TestLost(t *testing.T) {
	in, cmd := startInit(t)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := in.Start(t.Context(), shellCommand("sleep 0.2"), [3]*os.File{null, null, null}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); !errors.Is(err, ErrLost) {
		t.Errorf("wait: %v", err)
	}
	if _, _, err := runCommand(in, shellCommand("true")); !errors.Is(err, ErrLost) {
		t.Errorf("start: %v", err)
	}
	other, cmd := startInit(t)
	other.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(testenv.Scale(10 * time.Second)):
		t.Error("the first process survives its client")
	}
}

// The client reports that something has stopped the first process, and a caller that gives up leaves no process behind.
func TestStopped(t *testing.T) {
	in, cmd := startInit(t)
	late := make(chan int, 10)
	in.late = func(n int) { late <- n }
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	go func() { <-late; cancel() }()
	mark := filepath.Join(t.TempDir(), "mark")
	if _, err := in.Start(ctx, shellCommand("sleep 1; touch "+mark), [3]*os.File{null, null, null}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("start: %v", err)
	}
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if out, _, err := runCommand(in, shellCommand("sleep 1.2; ls "+mark)); err != nil || strings.HasPrefix(out, mark) {
		t.Errorf("%q, %v", out, err)
	}
}

// No exit is missed, however many processes end at the same moment.
func TestExitsAtOnce(t *testing.T) {
	in, _ := startInit(t)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for range 200 {
		var list []*Process
		for range 4 {
			p, err := in.Start(t.Context(), shellCommand(":"), [3]*os.File{null, null, null}, nil)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, p)
		}
		for _, p := range list {
			select {
			case <-p.ended:
			case <-time.After(testenv.Scale(20 * time.Second)):
				t.Fatal("an exit was missed")
			}
		}
	}
}
