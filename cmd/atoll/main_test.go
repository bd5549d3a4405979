package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs/dagger"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/config/stack"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/kubernetes"
	"github.com/seed46cd37a8/atoll/provider/modal"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// deadline is the time that tests wait for a condition.
var deadline = testenv.Scale(2 * time.Minute)

var update = flag.Bool("update", false, "write the golden files anew")

// The test binary runs atoll itself if it has that name.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"atoll":        main, // without the client in PATH, as on Windows
		"atoll-server": main,
		"atoll-panic":  panicInTerminal,
		"freeport":     printFreePort,
		"deadsocket":   leaveDeadSocket,

		"atoll-sample":     serveSample,
		"atoll-kubernetes": func() { os.Exit(plugin.ServeProvider("kubernetes", kubernetes.Open)) },
		"atoll-modal":      func() { os.Exit(plugin.ServeProvider("modal", modal.Open)) },
		"atoll-dagger":     func() { os.Exit(plugin.Serve("dagger", dagger.Open)) },
	})
}

func TestScripts(t *testing.T) { runScripts(t, "testdata/script", "local") }

// The commands of the README work with their providers.
func TestGVisorScripts(t *testing.T) {
	needGVisor(t)
	runScripts(t, "testdata/gvisor", "gvisor")
}

func TestSSHScripts(t *testing.T) {
	testenv.Need(t, testenv.Program("ssh", "openssh-client"))
	t.Run("local", func(t *testing.T) { runScripts(t, "testdata/ssh", "local") })
	t.Run("gvisor", func(t *testing.T) {
		needGVisor(t)
		runScripts(t, "testdata/ssh", "gvisor")
	})
}

func needGVisor(t *testing.T) {
	t.Helper()
	cfg, err := config.Load(config.Source{Env: []string{"HOME=" + t.TempDir(), "ATOLL_PROVIDER=gvisor", "ATOLL_STATE_DIR=" + t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := stack.NewBuilder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Open(stack.Options{})
	if err != nil {
		t.Skip(err)
	}
	defer p.Close()
	if probe := atoll.ProbeProvider(t.Context(), p); !probe.OK {
		t.Skipf("gvisor does not work here: %s (%s)", probe.Reason, probe.Fix)
	}
}

// buildClient builds the client, once, and returns its program.
var buildClient = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "atoll-client-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags=client", "-o", filepath.Join(dir, "atoll"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the client: %w: %s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "atoll"))
})

// clientDir returns a directory with the client as atoll, whose atoll-server is the test binary. It is empty on Windows.
func clientDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if runtime.GOOS == "windows" {
		return dir
	}
	program, err := buildClient()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "atoll"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func runScripts(t *testing.T, dir, provider string, settings ...string) {
	client := clientDir(t)
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			// a directory of its own: the path of a socket must be short
			state, err := os.MkdirTemp("", "atoll")
			if err != nil {
				return err
			}
			env.Defer(func() {
				removeSandboxes(env)
				os.RemoveAll(state)
			})
			env.Setenv("PATH", client+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Setenv("CLIENT", client)
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("HOME", home)
			env.Setenv("XDG_STATE_HOME", state)
			env.Setenv("STATE", filepath.Join(state, "atoll"))
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(home, ".config"))
			env.Setenv("ATOLL_PROVIDER", provider)
			env.Setenv("ATOLL_PROVIDERS", provider) // no other provider of this machine
			env.Setenv("ATOLL_LOG_LEVEL", "error")  // the provider local logs warnings
			env.Setenv("ATOLL_WARM", "false")       // scripts count sandboxes
			for _, s := range settings {
				name, value, _ := strings.Cut(s, "=")
				env.Setenv(name, value)
			}
			return os.MkdirAll(home, 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitserver": waitServer,
			"eventually": eventually,
		},
	})
}

// removeSandboxes removes what a script left running: its sandboxes outlive the server.
func removeSandboxes(env *testscript.Env) {
	if left, err := filepath.Glob(filepath.Join(env.Getenv("STATE"), "*", "sandboxes", "*")); err != nil || len(left) == 0 {
		return
	}
	cmd := exec.Command("sh", "-c", "atoll rm --all --volumes")
	cmd.Env = env.Vars
	if out, err := cmd.CombinedOutput(); err != nil {
		env.T().Log(fmt.Sprintf("atoll rm --all: %v: %s", err, out))
	}
}

// waitServer waits until a server answers on the socket, by default that of the state directory; with "!" until none
// does.
func waitServer(ts *testscript.TestScript, neg bool, args []string) {
	socket := filepath.Join(ts.Getenv("STATE"), "atoll.sock")
	if len(args) > 0 {
		socket = ts.MkAbs(args[0])
	}
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		if (err == nil) != neg {
			return
		}
	}
	ts.Fatalf("%s: the server did not start (or end)", socket)
}

// eventually repeats a command until it succeeds, with "!" until it fails. With "-out text", its stdout must also
// contain text.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	want := ""
	if len(args) > 2 && args[0] == "-out" {
		want, args = args[1], args[2:]
	}
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if out := ts.ReadFile("stdout"); (err == nil && strings.Contains(out, want)) != neg {
			return
		}
	}
	ts.Fatalf("%q: never had the wanted result", args)
}

// The golden files have the help of every command.
func TestHelp(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		t.Run(name, func(t *testing.T) {
			golden(t, filepath.Join("testdata", "help", name+".txt"), helpOf(t, cmd))
		})
		for _, sub := range cmd.Commands() {
			if sub.Name() != "help" && sub.Name() != "completion" && !sub.Hidden {
				walk(sub)
			}
		}
	}
	walk(newRoot(&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}

func helpOf(t *testing.T, cmd *cobra.Command) string {
	t.Helper()
	var b strings.Builder
	cmd.InitDefaultHelpFlag()
	cmd.SetOut(&b)
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(b.String(), "\n") {
		if strings.TrimRight(line, " ") != line {
			t.Errorf("line %d ends with a space", i+1)
		}
		if n := utf8.RuneCountInString(line); n > helpWidth {
			t.Errorf("line %d has %d columns, want at most %d: %s", i+1, n, helpWidth, line)
		}
	}
	return b.String()
}

// golden compares got with a file, or writes the file with -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the text differs from %s (see it with git diff after -update); it is now:\n%s", path, got)
	}
}

// panicInTerminal is atoll crashing with a terminal in raw mode.
func panicInTerminal() {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	s, err := a.newConsole(context.Background(), consoleOptions{stdin: true, tty: true})
	if err == nil {
		err = s.takeTerminal()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer s.closeConsole()
	panic("as the test wants")
}

// printFreePort prints the number of a free TCP port.
func printFreePort() {
	port, err := testenv.FreePort()
	if err != nil {
		panic(err)
	}
	fmt.Println(port)
}

// leaveDeadSocket leaves a socket behind, like a killed server.
func leaveDeadSocket() {
	path := os.Args[1]
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		panic(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		panic(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}
