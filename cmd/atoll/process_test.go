//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A child is a running atoll whose output is read line by line.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stderr paper
}

func startChild(t *testing.T, env []string, args ...string) *child {
	t.Helper()
	r := &child{t: t, cmd: atollCmd(env, "atoll", args...)}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.lines, r.cmd.Stderr = bufio.NewScanner(out), &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.cmd.Process.Kill() })
	return r
}

func (r *child) expect(line string) {
	r.t.Helper()
	for r.lines.Scan() {
		if r.lines.Text() == line {
			return
		}
	}
	r.t.Fatalf("it never printed %q; stderr:\n%s", line, r.stderr.String())
}

func (r *child) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// hasEnded reports whether the program has ended, without waiting.
func (r *child) hasEnded() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	if err != nil {
		return false // a system without /proc
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z")
}

// exit waits for the end, kills a program that does not end, and returns the exit code.
func (r *child) exit() int {
	r.t.Helper()
	timer := time.AfterFunc(deadline, func() { r.cmd.Process.Kill() })
	defer timer.Stop()
	for r.lines.Scan() {
	}
	return codeOf(r.t, r.cmd.Wait())
}

// Signals reach the command, and its exit code is that of atoll.
func TestSignals(t *testing.T) {
	const asks = `trap 'echo got TERM; exit 3' TERM; trap 'echo got INT; exit 4' INT; trap 'echo got USR1; exit 5' USR1; trap 'exit 6' HUP; echo ready; while :; do sleep 0.05; done`
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 3, syscall.SIGINT: 4, syscall.SIGUSR1: 5, syscall.SIGHUP: 6} {
		t.Run(sig.String(), func(t *testing.T) {
			r := startChild(t, atEnv(t), "run", "--", "sh", "-c", asks)
			r.expect("ready")
			r.signal(sig)
			if code := r.exit(); code != want {
				t.Errorf("exit code %d, want %d; stderr:\n%s", code, want, r.stderr.String())
			}
		})
	}
}

// A signal without a handler in the command ends it, and the exit code says so.
func TestSignalEnds(t *testing.T) {
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGQUIT: 131} {
		r := startChild(t, atEnv(t), "run", "--", "sh", "-c", "echo ready; exec sleep 60")
		r.expect("ready")
		r.signal(sig)
		if code := r.exit(); code != want {
			t.Errorf("%s: exit code %d, want %d; stderr:\n%s", sig, code, want, r.stderr.String())
		}
	}
}

// Three signals in quick succession kill a command that ignores them.
func TestSignalsEscalate(t *testing.T) {
	r := startChild(t, atEnv(t), "run", "--", "sh", "-c", "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done")
	r.expect("ready")
	r.signal(syscall.SIGINT)
	r.expect("no")
	r.signal(syscall.SIGINT)
	r.expect("no")
	// On a busy machine, the third may come too late to count as one of three.
	for end := time.Now().Add(deadline); !r.hasEnded() && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		r.signal(syscall.SIGINT)
	}
	if code := r.exit(); code != 137 {
		t.Errorf("exit code %d, want 137; stderr:\n%s", code, r.stderr.String())
	}
}

// The whole output of a command arrives, however large it is and however slow its reader.
func TestOutputIsComplete(t *testing.T) {
	const size = 40 << 20
	cmd := atollCmd(atEnv(t), "atoll", "exec", "web", "head", "-c", fmt.Sprint(size), "/dev/zero")
	runServer(t, cmd.Env, "--destroy-on-exit")
	mustRun(t, cmd.Env, "create", "--name", "web")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, out)
	if n != size || err != nil {
		t.Errorf("read %d bytes, %v, want %d", n, err, size)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// If the server is killed during an exec, its client reports that. A new server finds the sandbox and its files.
func TestServerKilled(t *testing.T) {
	env := atEnv(t)
	server := runServer(t, env)
	mustRun(t, env, "create", "--name", "web")
	mustRun(t, env, "exec", "web", "sh", "-c", "echo kept > file")
	r := startChild(t, env, "exec", "web", "sh", "-c", "echo ready; exec sleep 60")
	r.expect("ready")
	server.Process.Kill()
	if code := r.exit(); code != exitOwn || r.stderr.String() == "" {
		t.Errorf("the client: exit code %d, want %d and a reason, got %q", code, exitOwn, r.stderr.String())
	}
	runServer(t, env, "--destroy-on-exit")
	if state := mustRun(t, env, "ls"); !strings.Contains(state, "web") || strings.Contains(state, "running") {
		t.Errorf("the new server says:\n%s\nwant that web does not run", state)
	}
	mustRun(t, env, "start", "web")
	if got := mustRun(t, env, "exec", "web", "cat", "file"); got != "kept\n" {
		t.Errorf("the file holds %q, want %q", got, "kept\n")
	}
	mustRun(t, env, "rm", "-v", "web")
}

func TestPortForward(t *testing.T) {
	inside, err := net.Listen("tcp", "127.0.0.1:0") // the provider local shares our network
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	go func() {
		for {
			c, err := inside.Accept()
			if err != nil {
				return
			}
			go func() { // answer when the client has finished
				defer c.Close()
				all, _ := io.ReadAll(c)
				fmt.Fprintf(c, "heard %s", all)
			}()
		}
	}()
	env := atEnv(t)
	runServer(t, env, "--destroy-on-exit")
	mustRun(t, env, "create", "--name", "web")
	port := inside.Addr().(*net.TCPAddr).Port
	r := startChild(t, env, "port-forward", "web", fmt.Sprintf("0:%d", port))
	if !r.lines.Scan() {
		t.Fatalf("it says nothing; stderr:\n%s", r.stderr.String())
	}
	addr, _, _ := strings.Cut(r.lines.Text(), " -> ")
	for i := range 3 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "hello %d", i)
		c.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(c)
		if want := fmt.Sprintf("heard hello %d", i); string(got) != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		c.Close()
	}
	r.signal(syscall.SIGINT)
	if code := r.exit(); code != 0 {
		t.Errorf("exit code %d, want 0: an interrupt is its normal end; stderr:\n%s", code, r.stderr.String())
	}
}
