//go:build linux

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// A screen is a terminal with atoll in it.
type screen struct {
	t    *testing.T
	pty  *os.File
	cmd  *exec.Cmd
	done chan error

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

// atEnv is the environment of atoll in a test: a state directory of its own, and the provider local.
func atEnv(t *testing.T) []string {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME="+dir, "XDG_CONFIG_HOME="+dir, "ATOLL_PROVIDER=local", "ATOLL_LOG_LEVEL=error")
}

// atollCmd returns a command that runs atoll, or another program of TestMain.
func atollCmd(env []string, name string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return &exec.Cmd{Path: self, Args: append([]string{name}, args...), Env: env}
}

func openScreen(t *testing.T, cmd *exec.Cmd) *screen {
	t.Helper()
	s := &screen{t: t, cmd: cmd, done: make(chan error, 1)}
	var err error
	if s.pty, err = pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := s.pty.Read(buf)
			s.mu.Lock()
			s.out.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	go func() { s.done <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		s.pty.Close()
		reading.Wait()
	})
	return s
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

func (s *screen) typed(text string) {
	s.t.Helper()
	if _, err := s.pty.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) expect(text string) {
	s.t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(s.text(), text) {
			return
		}
	}
	s.t.Fatalf("the screen never showed %q:\n%s", text, s.text())
}

// exit waits for the end and returns the exit code.
func (s *screen) exit() int {
	s.t.Helper()
	select {
	case err := <-s.done:
		return codeOf(s.t, err)
	case <-time.After(deadline):
		s.t.Fatalf("it does not end:\n%s", s.text())
		return 0
	}
}

func codeOf(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err == nil {
		return 0
	}
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

func (s *screen) state() unix.Termios {
	s.t.Helper()
	state, err := unix.IoctlGetTermios(int(s.pty.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *state
}

func (s *screen) awaitRaw() {
	s.t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if s.state().Lflag&unix.ICANON == 0 {
			return
		}
	}
	s.t.Fatal("the terminal never became raw")
}

func TestTerminalSize(t *testing.T) {
	s := openScreen(t, atollCmd(atEnv(t), "atoll", "run", "-it", "--", "stty", "size"))
	s.expect("30 100")
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, s.text())
	}
}

func TestTerminalResize(t *testing.T) {
	s := openScreen(t, atollCmd(atEnv(t), "atoll", "run", "-it", "--", "sh", "-c", `trap 'stty size' WINCH; echo ready; read x; exit 4`))
	s.expect("ready")
	if err := pty.Setsize(s.pty, &pty.Winsize{Rows: 41, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	s.expect("41 77")
	s.typed("done\r")
	if code := s.exit(); code != 4 {
		t.Errorf("exit code %d, want 4:\n%s", code, s.text())
	}
}

func TestTerminalInterrupt(t *testing.T) {
	s := openScreen(t, atollCmd(atEnv(t), "atoll", "run", "-it", "--", "sh", "-c", `trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done`))
	s.expect("ready")
	s.typed("\x03")
	s.expect("caught")
	if code := s.exit(); code != 9 {
		t.Errorf("exit code %d, want 9:\n%s", code, s.text())
	}
}

// Without -i the terminal is not in raw mode: ^C is a signal, which is forwarded.
func TestTerminalInterruptWithoutStdin(t *testing.T) {
	s := openScreen(t, atollCmd(atEnv(t), "atoll", "run", "-t", "--", "sh", "-c", "echo ready; exec sleep 100"))
	s.expect("ready")
	s.typed("\x03")
	if code := s.exit(); code != 130 {
		t.Errorf("exit code %d, want 130:\n%s", code, s.text())
	}
}

// However atoll ends, it restores the terminal.
func TestTerminalRestored(t *testing.T) {
	waitShell := []string{"run", "-it", "--", "sh", "-c", "echo ready; read x; exit 5"}
	tests := []struct {
		name string
		cmd  []string
		end  func(s *screen)
		code int
	}{
		{"exit", append([]string{"atoll"}, waitShell...), func(s *screen) { s.typed("x\r") }, 5},
		{"SIGTERM", append([]string{"atoll"}, waitShell...), func(s *screen) { s.cmd.Process.Signal(syscall.SIGTERM) }, 143},
		{"SIGHUP", append([]string{"atoll"}, waitShell...), func(s *screen) { s.cmd.Process.Signal(syscall.SIGHUP) }, 129},
		{"panic", []string{"atoll-panic"}, nil, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// A second terminal file keeps the state readable after the end.
			s := openScreen(t, atollCmd(atEnv(t), tt.cmd[0], tt.cmd[1:]...))
			if tt.end != nil {
				s.expect("ready")
				s.awaitRaw()
				tt.end(s)
			}
			if code := s.exit(); code != tt.code {
				t.Errorf("exit code %d, want %d:\n%s", code, tt.code, s.text())
			}
			if s.state().Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != unix.ICANON|unix.ECHO|unix.ISIG {
				t.Errorf("the terminal was left raw:\n%s", s.text())
			}
		})
	}
}

func TestTerminalNeedsOne(t *testing.T) {
	cmd := atollCmd(atEnv(t), "atoll", "run", "-it", "--", "true")
	cmd.Stdin = strings.NewReader("")
	out, err := cmd.CombinedOutput()
	if code := codeOf(t, err); code != exitOwn || !strings.Contains(string(out), "stdin is not a terminal") {
		t.Errorf("exit code %d, want %d and the reason:\n%s", code, exitOwn, out)
	}
}

// runServer runs atoll serve until the test ends.
func runServer(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := atollCmd(env, "atoll", append([]string{"serve"}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1)
	var line strings.Builder
	for !strings.Contains(line.String(), "listening on") {
		if _, err := stderr.Read(buf); err != nil {
			t.Fatalf("the server did not start: %s", line.String())
		}
		line.Write(buf)
	}
	go func() { // drain the pipe
		for _, err := stderr.Read(buf); err == nil; _, err = stderr.Read(buf) {
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	return cmd
}

func TestDetachAndAttach(t *testing.T) {
	env := atEnv(t)
	runServer(t, env, "--destroy-on-exit")
	mustRun(t, env, "create", "--name", "web", "-it", "--", "sh", "-c", "echo first; while read x; do echo got $x; done")
	s := openScreen(t, atollCmd(env, "atoll", "attach", "web"))
	s.awaitRaw()
	s.typed("one\r")
	s.expect("got one")
	s.typed("\x10\x11")
	s.expect("detached")
	if code := s.exit(); code != 0 {
		t.Errorf("detach: exit code %d, want 0", code)
	}
	s = openScreen(t, atollCmd(env, "atoll", "attach", "--from", "0", "web"))
	s.expect("first")
	s.expect("got one")
	s.typed("two\r")
	s.expect("got two")
	s.typed("\x04")
	if code := s.exit(); code != 0 {
		t.Errorf("end of input: exit code %d, want 0", code)
	}
}

func TestExecDetach(t *testing.T) {
	env := atEnv(t)
	runServer(t, env, "--destroy-on-exit")
	mustRun(t, env, "create", "--name", "web")
	s := openScreen(t, atollCmd(env, "atoll", "exec", "-it", "--detach-keys", "ctrl-]", "web", "sh", "-c", "echo ready; read x; exit 3"))
	s.expect("ready")
	s.typed("\x1d")
	s.expect("detached: run atoll attach web ")
	if code := s.exit(); code != 0 {
		t.Errorf("detach: exit code %d, want 0", code)
	}
	_, id, _ := strings.Cut(s.text(), "atoll attach web ")
	id, _, _ = strings.Cut(id, " ")
	s = openScreen(t, atollCmd(env, "atoll", "attach", "web", id))
	s.awaitRaw()
	s.typed("x\r")
	if code := s.exit(); code != 3 {
		t.Errorf("exit code %d, want that of the command, 3:\n%s", code, s.text())
	}
}

func mustRun(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := atollCmd(env, "atoll", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("atoll %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
