package providertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var execPromises = []promise{
	{"exit codes come back", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, code := range []int{0, 1, 7, 124, 126, 127, 128, 137, 255} {
			exit := h.waitExit(t, h.startProcess(t, sb, scriptCommand("exit", code)))
			if exit.Code != code || exit.Signal != 0 || exit.TimedOut {
				t.Errorf("exit %d came back as %+v", code, exit)
			}
			if exit.Success() != (code == 0) {
				t.Errorf("exit %d: Success() = %v", code, exit.Success())
			}
		}
	}},
	{"an exit has the duration of the process, whatever its code", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, code := range []int{0, 3} {
			begin := time.Now()
			res := h.runCommand(t, sb, scriptCommand("exit", code))
			if took := time.Since(begin); res.Code != code || res.Duration <= 0 || time.Duration(res.Duration) > took {
				t.Errorf("exit %d: %+v within %v; want a duration within that", code, res.Exit, took)
			}
		}
	}},
	{"a process killed by a signal exits with 128 plus its number", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for name, sig := range map[string]atoll.Signal{"KILL": atoll.SIGKILL, "TERM": atoll.SIGTERM, "USR1": atoll.SIGUSR1} {
			exit := h.waitExit(t, h.startProcess(t, sb, scriptCommand("signal", name)))
			if !h.killedBy(exit, sig) {
				t.Errorf("killed by SIG%s: exit %+v, want code %d and the signal", name, exit, 128+int(sig))
			}
		}
	}},
	{"stdout and stderr stay separate", nil, func(t *testing.T, h *harness) {
		res := h.runCommand(t, h.plainSandbox(t), scriptCommand("both", "to stdout", "to stderr"))
		if string(res.Stdout) != "to stdout\n" || string(res.Stderr) != "to stderr\n" {
			t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
		}
	}},
	{"one goroutine writes both streams if their writers are equal", nil, func(t *testing.T, h *harness) {
		var buf bytes.Buffer // two writers would trip the race detector
		cmd := scriptCommand("both", "out", "err")
		cmd.Stdout, cmd.Stderr = &buf, &buf
		h.waitExit(t, h.startProcess(t, h.plainSandbox(t), cmd))
		lines := strings.Fields(buf.String())
		slices.Sort(lines)
		if !slices.Equal(lines, []string{"err", "out"}) {
			t.Errorf("the writer got %q", buf.String())
		}
	}},
	{"arguments arrive unchanged, without a shell", nil, func(t *testing.T, h *harness) {
		args := []string{"echo", "a b", "$HOME", "*", "'q\"", "", "back\\slash", "ümläut", "-", "; exit 1"}
		out, err := atoll.Output(h.newContext(t), h.plainSandbox(t), programCommand(args...))
		if want := strings.Join(args[1:], " ") + "\n"; err != nil || string(out) != want {
			t.Errorf("echo printed %q, %v; want %q", out, err, want)
		}
	}},
	{"the environment joins those of spec and command, without the caller's", nil, func(t *testing.T, h *harness) {
		t.Setenv("ATOLL_TEST_SECRET", "secret")
		sb := h.createSandbox(t, atoll.Spec{Env: []string{"A=spec", "B=spec", "C=x=y", "EMPTY="}})
		cmd := programCommand("env")
		cmd.Env = []string{"B=first", "B=command", "D=two words", "U=ü"}
		env := strings.Split(h.runForOutput(t, sb, cmd), "\n")
		for _, want := range []string{"A=spec", "B=command", "C=x=y", "EMPTY=", "D=two words", "U=ü"} {
			if !slices.Contains(env, want) {
				t.Errorf("%q is not in the environment %q", want, env)
			}
		}
		seen := map[string]bool{}
		for _, kv := range env {
			k, _, _ := strings.Cut(kv, "=")
			if k == "ATOLL_TEST_SECRET" {
				t.Errorf("the caller's environment leaks: %q", kv)
			}
			if seen[k] {
				t.Errorf("%s is in the environment twice", k)
			}
			seen[k] = true
		}
	}},
	{"the working directory is the command's, or the spec's, which Create makes", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Workdir: "/work/place"})
		for dir, want := range map[string]string{"": "/work/place", "/": "/", ".": "/work/place"} {
			cmd := programCommand("pwd")
			cmd.Dir = dir
			if got := h.runForOutput(t, sb, cmd); got != want && !isBelowHostDir(h, got, want) {
				t.Errorf("pwd with Dir %q printed %q, want %q", dir, got, want)
			}
		}
	}},
	{"a relative directory is below the spec's work directory", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if err := atoll.Files(sb).Mkdir(h.newContext(t), "below/here", 0o755); err != nil {
			t.Fatalf("Mkdir: %v", err)
		}
		cmd := programCommand("pwd")
		cmd.Dir = "below/here"
		if got, want := h.runForOutput(t, sb, cmd), "/work/below/here"; got != want && !isBelowHostDir(h, got, want) {
			t.Errorf("pwd printed %q, want %q", got, want)
		}
	}},
	{"the user is the command's, or the spec's", []need{needUsers}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{User: "1234:2345"})
		for _, c := range []struct{ user, uid, gid string }{
			{"", "1234", "2345"}, {"0", "0", "0"}, {"root", "0", "0"}, {"77:88", "77", "88"},
		} {
			for flag, want := range map[string]string{"-u": c.uid, "-g": c.gid} {
				cmd := programCommand("id", flag)
				cmd.User = c.user
				if got := h.runForOutput(t, sb, cmd); got != want {
					t.Errorf("user %q: id %s printed %q, want %q", c.user, flag, got, want)
				}
			}
		}
	}},
	{"only the default user is accepted without Caps.Users", nil, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.Users {
			t.Skip("the provider has cap users")
		}
		sb := h.plainSandbox(t)
		cmd := programCommand("true")
		cmd.User = "1234:2345"
		_, err := sb.Exec(h.newContext(t), cmd)
		wantKind(t, "Exec", err, atoll.ErrUnsupported)
		h.wantRefused(t, atoll.Spec{User: "1234:2345"}, atoll.ErrUnsupported)
	}},
	{"Exec refuses an unknown user", []need{needUsers}, func(t *testing.T, h *harness) {
		cmd := programCommand("true")
		cmd.User = "nobody-of-that-name"
		_, err := h.plainSandbox(t).Exec(h.newContext(t), cmd)
		wantKind(t, "Exec", err, atoll.ErrExecFailed, atoll.ErrInvalid)
	}},
	{"Exec refuses a missing directory", nil, func(t *testing.T, h *harness) {
		cmd := programCommand("true")
		cmd.Dir = "/no/such/directory"
		_, err := h.plainSandbox(t).Exec(h.newContext(t), cmd)
		wantKind(t, "Exec", err, atoll.ErrExecFailed, atoll.ErrInvalid)
		if atoll.KindOf(err) == atoll.ErrCommandNotFound {
			t.Errorf("the error %q says that the command is missing", err)
		}
	}},
	{"stdin arrives completely", nil, func(t *testing.T, h *harness) {
		cmd := programCommand("cat")
		cmd.Stdin = strings.NewReader("first\nlast without newline")
		out, err := atoll.Output(h.newContext(t), h.plainSandbox(t), cmd)
		if err != nil || string(out) != "first\nlast without newline" {
			t.Errorf("cat printed %q, %v", out, err)
		}
	}},
	{"a process without stdin reads end of file", nil, func(t *testing.T, h *harness) {
		if out := h.runForOutput(t, h.plainSandbox(t), programCommand("cat")); out != "" {
			t.Errorf("cat printed %q", out)
		}
	}},
	{"the end of stdin can come long after its last byte", nil, func(t *testing.T, h *harness) {
		r, w := newPipe(t)
		scr := newScreen()
		cmd := programCommand("cat")
		cmd.Stdin, cmd.Stdout = r, scr
		p := h.startProcess(t, h.plainSandbox(t), cmd)
		io.WriteString(w, "one ")
		scr.waitForText(t, h, "one ")
		io.WriteString(w, "two")
		scr.waitForText(t, h, "one two")
		w.Close()
		if exit := h.waitExit(t, p); exit.Code != 0 {
			t.Errorf("exit is %v", exit)
		}
	}},
	{"Wait does not wait for a stdin that nobody closes", nil, func(t *testing.T, h *harness) {
		r, _ := newPipe(t)
		cmd := scriptCommand("exit", 5)
		cmd.Stdin = r
		if exit := h.waitExit(t, h.startProcess(t, h.plainSandbox(t), cmd)); exit.Code != 5 {
			t.Errorf("exit is %v, want code 5", exit)
		}
	}},
	{"a process that does not read its stdin ends", nil, func(t *testing.T, h *harness) {
		cmd := scriptCommand("exit", 0)
		cmd.Stdin = bytes.NewReader(make([]byte, 4<<20))
		if exit := h.waitExit(t, h.startProcess(t, h.plainSandbox(t), cmd)); exit.Code != 0 {
			t.Errorf("exit is %v", exit)
		}
	}},
	{"8 MiB of arbitrary bytes go in and come out in order", nil, func(t *testing.T, h *harness) {
		data := patternBytes(8 << 20)
		cmd := programCommand("cat")
		cmd.Stdin = bytes.NewReader(data)
		out, err := atoll.Output(h.newContext(t), h.plainSandbox(t), cmd)
		if err != nil {
			t.Fatalf("cat: %v", err)
		}
		if d := describeDiff(out, data); d != "" {
			t.Errorf("cat printed %s", d)
		}
	}},
	{"a missing command is ErrCommandNotFound", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, name := range []string{"no-such-program", "/no/such/program"} {
			_, err := sb.Exec(h.newContext(t), programCommand(name))
			wantKind(t, "Exec "+name, err, atoll.ErrCommandNotFound)
			wantKind(t, "Exec "+name, err, atoll.ErrExecFailed)
		}
	}},
	{"a program whose interpreter is missing does not start", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if err := atoll.WriteFile(h.newContext(t), sb, "script", []byte("#!/usr/bin/no-such-interpreter\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := sb.Exec(h.newContext(t), programCommand("./script"))
		wantKind(t, "Exec", err, atoll.ErrExecFailed)
	}},
	{"a command that cannot be executed is ErrExecFailed", nil, func(t *testing.T, h *harness) {
		_, err := h.plainSandbox(t).Exec(h.newContext(t), programCommand("/"))
		wantKind(t, "Exec /", err, atoll.ErrExecFailed)
		if atoll.KindOf(err) == atoll.ErrCommandNotFound {
			t.Errorf("the error %q says that the command is missing", err)
		}
	}},
	{"Exec refuses an invalid command", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for name, cmd := range map[string]*atoll.Command{
			"no args":      {},
			"empty":        {Args: []string{""}},
			"NUL":          {Args: []string{"echo", "a\x00b"}},
			"env":          {Args: []string{"true"}, Env: []string{"X"}},
			"user":         {Args: []string{"true"}, User: "a b"},
			"timeout":      {Args: []string{"true"}, Timeout: -1},
			"output limit": {Args: []string{"true"}, OutputLimit: atoll.MaxOutputLimit + 1},
			"dir":          {Args: []string{"true"}, Dir: "\x00"},
		} {
			_, err := sb.Exec(h.newContext(t), cmd)
			wantKind(t, name, err, atoll.ErrInvalid)
		}
	}},
	{"a directory that is a file or missing is ErrExecFailed", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.runForOutput(t, sb, scriptCommand("store", "file", "text"))
		for _, dir := range []string{"file", "none", "file/sub"} {
			_, err := sb.Exec(h.newContext(t), &atoll.Command{Args: []string{"pwd"}, Dir: dir})
			wantKind(t, "Exec in "+dir, err, atoll.ErrExecFailed)
		}
	}},
	{"Exec neither changes nor keeps the command", nil, func(t *testing.T, h *harness) {
		build := func() *atoll.Command {
			return &atoll.Command{Args: []string{"cat"}, Env: []string{"A=b"}, OpenStdin: true, Timeout: atoll.Duration(time.Minute)}
		}
		sb, cmd := h.ownSandbox(t), build()
		p := h.startProcess(t, sb, cmd)
		if !reflect.DeepEqual(cmd, build()) {
			t.Errorf("Exec changed the command to %+v", cmd)
		}
		cmd.Args[0] = "changed"
		if all, err := atoll.Processes(h.newContext(t), sb); err == nil && all[0].Args[0] != "cat" {
			t.Errorf("the process is now called %q", all[0].Args)
		}
		if err := p.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
			t.Errorf("Signal: %v", err)
		}
	}},
	{"Process finds each process by its own id", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		a, b := h.startProcess(t, sb, scriptCommand("exit", 3)), h.startProcess(t, sb, scriptCommand("exit", 4))
		if a.ID() == "" || a.ID() == b.ID() || a.ID() == atoll.MainProcess {
			t.Errorf("ids are %q and %q", a.ID(), b.ID())
		}
		for p, code := range map[atoll.Process]int{a: 3, b: 4} {
			found, err := sb.Process(h.newContext(t), p.ID())
			if err != nil {
				t.Errorf("Process(%s): %v", p.ID(), err)
				continue
			}
			if exit := h.waitExit(t, found); found.ID() != p.ID() || exit.Code != code {
				t.Errorf("Process(%s) has id %s and exit %v, want code %d", p.ID(), found.ID(), exit, code)
			}
		}
		_, err := sb.Process(h.newContext(t), "no-such-process")
		wantKind(t, "Process", err, atoll.ErrNotExist)
	}},
	{"32 commands run at once, each with its own output", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for i, err := range inParallel(32, func(i int) error {
			want := strings.Repeat(strconv.Itoa(i)+" ", 1000)
			cmd := programCommand("cat")
			cmd.Stdin = strings.NewReader(want)
			out, err := atoll.Output(h.newContext(t), sb, cmd)
			if err == nil && string(out) != want {
				err = fmt.Errorf("got %q", out)
			}
			return err
		}) {
			if err != nil {
				t.Errorf("number %d: %v", i, err)
			}
		}
	}},
	{"many commands run one after the other, and ended ones are retained", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		var ids []string
		for i := range 100 {
			p := h.startProcess(t, sb, programCommand("echo", strconv.Itoa(i)))
			h.waitExit(t, p)
			ids = append(ids, p.ID())
		}
		for _, i := range []int{0, 50, 99} {
			p, err := sb.Process(h.newContext(t), ids[i])
			if err != nil {
				t.Errorf("process %d of 100: %v", i, err)
				continue
			}
			scr := newScreen()
			if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}); err != nil || scr.readText() != strconv.Itoa(i)+"\n" {
				t.Errorf("process %d of 100: replay %q, %v", i, scr.readText(), err)
			}
		}
	}},
	{"Processes lists what Exec started, oldest first", nil, func(t *testing.T, h *harness) {
		sb := h.ownSandbox(t)
		first := h.startProcess(t, sb, scriptCommand("exit", 3))
		h.waitExit(t, first)
		cmd := scriptCommand("ready")
		cmd.Dir = "."
		second, _ := h.startReady(t, sb, cmd)
		all, err := atoll.Processes(h.newContext(t), sb)
		if atoll.KindOf(err) == atoll.ErrUnsupported {
			t.Skip("the provider lists no processes")
		}
		if err != nil || len(all) != 2 {
			t.Fatalf("Processes: %d, %v; want 2", len(all), err)
		}
		if a := all[0]; a.ID != first.ID() || a.Exit == nil || a.Exit.Code != 3 || !slices.Equal(a.Args, scriptArgs("exit", 3)) {
			t.Errorf("the first is %+v, want the one that exited with 3", a)
		}
		if b := all[1]; b.ID != second.ID() || b.Exit != nil || b.Stdout.Written != int64(len("ready\n")) || b.Started.Before(all[0].Started) {
			t.Errorf("the second is %+v, want the one that runs", b)
		}
	}},
	{"ExecuteCode runs programs of any size in the languages of the image", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for language, c := range map[string]struct{ program, version, text string }{
			"Python": {"python3", "Python 3", `import sys; print("in:", sys.stdin.read()); "PAD"; sys.exit(3)`},
			"js":     {"node", "v", `console.log("in:", require("fs").readFileSync(0, "utf8")); "PAD"; process.exitCode = 3`},
			"BASH":   {"bash", "GNU bash", `echo "in: "; cat; : PAD; exit 3`},
			"sh":     {text: `echo "in: "; cat; : PAD; exit 3`},
		} {
			if c.program != "" {
				out, err := atoll.Output(h.newContext(t), sb, programCommand(c.program, "--version"))
				if errors.Is(err, atoll.ErrCommandNotFound) {
					res, err := atoll.ExecuteCode(h.newContext(t), sb, &atoll.Code{Language: language, Code: c.text})
					if err != nil || res.Code != 127 || !strings.Contains(string(res.Stderr), c.program) {
						t.Errorf("%s without %s: %v, %v; want code 127 and the reason", language, c.program, res, err)
					}
				}
				if err != nil || !strings.HasPrefix(string(out), c.version) {
					t.Logf("%s is not tried: %s --version says %.40q, %v", language, c.program, out, err)
					continue
				}
			}
			for _, size := range []int{1, 300 << 10} { // the second is more than an argument can hold
				res, err := atoll.ExecuteCode(h.newContext(t), sb, &atoll.Code{Language: language, Code: strings.Replace(c.text, "PAD", strings.Repeat("x", size), 1)})
				if err != nil || res.Code != 3 || string(res.Stdout) != "in: \n" || len(res.Stderr) > 0 {
					t.Errorf("%s with %d bytes more: %v, %v; want exit code 3 and an empty input", language, size, res, err)
				}
			}
		}
		res, err := atoll.ExecuteCode(h.newContext(t), sb, &atoll.Code{Language: "x", Code: "x"})
		if err != nil || res.Code != -1 || len(res.Stdout) > 0 || string(res.Stderr) != "unsupported language: x" {
			t.Errorf("a language that is not there: %v, %v", res, err)
		}
		res, err = atoll.ExecuteCode(h.newContext(t), sb, &atoll.Code{Language: "sh", Code: "echo", Dir: "no-such-directory"})
		if err != nil || res.Code != 126 || len(res.Stdout) > 0 || !strings.Contains(string(res.Stderr), "no-such-directory") {
			t.Errorf("a program that cannot be started: %v, %v; want code 126 and the reason", res, err)
		}
	}},
	{"DetectShell finds a shell that runs", nil, func(t *testing.T, h *harness) {
		shell, err := atoll.DetectShell(h.newContext(t), h.plainSandbox(t), "", nil)
		if err != nil || !strings.HasPrefix(shell, "/") {
			t.Errorf("DetectShell = %q, %v; want a path", shell, err)
		}
	}},
}

// killedBy reports whether exit is that of a process that sig killed, as far as the provider can tell.
func (h *harness) killedBy(exit atoll.Exit, sig atoll.Signal) bool {
	if !h.p.Info().Caps.ExitSignal {
		return exit.Code == 128+int(sig) && exit.Signal == 0
	}
	return exit.Code == 128+int(sig) && exit.Signal == sig
}

// isBelowHostDir reports whether processes see the paths of the host and got is want below a directory of the
// host.
func isBelowHostDir(h *harness, got, want string) bool {
	return seesHost(h.p.Info()) && strings.HasSuffix(got, want[strings.LastIndex(want, "/"):])
}
