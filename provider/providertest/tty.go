package providertest

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

var ttyPromises = []promise{
	{"the terminal of a command has the requested size", []need{needTTY}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if code := h.runForCode(t, sb, addTTY(scriptCommand("istty"))); code != 0 {
			t.Errorf("stdin, stdout and stderr are not all terminals: exit %d", code)
		}
		cmd := programCommand("stty", "size")
		cmd.TTY = &atoll.Size{Rows: 33, Cols: 111}
		if got := h.runForOutput(t, sb, cmd); got != "33 111" {
			t.Errorf("stty size printed %q, want 33 111", got)
		}
	}},
	{"a command without TTY has no terminal", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if code := h.runForCode(t, sb, scriptCommand("istty")); code == 0 {
			t.Error("the command has a terminal")
		}
		p := h.startProcess(t, sb, scriptCommand("ready"))
		err := atoll.Resize(h.newContext(t), p, atoll.Size{Rows: 1, Cols: 1})
		wantKind(t, "Resize", err, atoll.ErrInvalid, atoll.ErrUnsupported)
	}},
	{"Resize arrives, and SIGWINCH with it", []need{needTTY}, func(t *testing.T, h *harness) {
		cmd := scriptCommand("winch")
		cmd.TTY = &atoll.Size{Rows: 24, Cols: 80}
		p, scr := h.startReady(t, h.plainSandbox(t), cmd)
		scr.waitForText(t, h, "24 80\r\n")
		for _, size := range []struct {
			atoll.Size
			text string
		}{{atoll.Size{Rows: 50, Cols: 132}, "50 132\r\n"}, {atoll.Size{Rows: 10, Cols: 20}, "10 20\r\n"}} {
			if err := atoll.Resize(h.newContext(t), p, size.Size); err != nil {
				t.Fatalf("Resize: %v", err)
			}
			scr.waitForText(t, h, size.text)
		}
		h.killProcess(t, p)
		wantKind(t, "Resize after the end", atoll.Resize(h.newContext(t), p, atoll.Size{Rows: 1, Cols: 1}), atoll.ErrStopped)
	}},
	{"a terminal echoes input, and lines end in CR LF", []need{needTTY}, func(t *testing.T, h *harness) {
		_, w, scr := h.startOnTerminal(t, h.plainSandbox(t), programCommand("cat"))
		io.WriteString(w, "hello\r")
		scr.waitForText(t, h, "hello\r\nhello\r\n")
	}},
	{"a terminal has no stderr of its own", []need{needTTY}, func(t *testing.T, h *harness) {
		res := h.runCommand(t, h.plainSandbox(t), addTTY(scriptCommand("both", "out", "err")))
		if string(res.Stdout) != "out\r\nerr\r\n" || len(res.Stderr) != 0 {
			t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
		}
	}},
	{"^C interrupts", []need{needTTY}, func(t *testing.T, h *harness) {
		p, w, scr := h.startOnTerminal(t, h.plainSandbox(t), scriptCommand("ready"))
		scr.waitForText(t, h, "ready\r\n")
		io.WriteString(w, "\x03")
		if exit := h.waitExit(t, p); !h.killedBy(exit, atoll.SIGINT) {
			t.Errorf("exit is %+v, want it killed by SIGINT", exit)
		}
	}},
	{"^C can be caught", []need{needTTY}, func(t *testing.T, h *harness) {
		p, w, scr := h.startOnTerminal(t, h.plainSandbox(t), scriptCommand("trap", "INT"))
		scr.waitForText(t, h, "ready\r\n")
		io.WriteString(w, "\x03")
		// Output printed at once may be lost: a terminal sends the signal first
		// and then empties its queues.
		if exit := h.waitExit(t, p); exit.Code != 42 {
			t.Errorf("exit is %+v, want it caught", exit)
		}
	}},
	{"^D is an end of file", []need{needTTY}, func(t *testing.T, h *harness) {
		p, w, scr := h.startOnTerminal(t, h.plainSandbox(t), programCommand("cat"))
		io.WriteString(w, "line\r")
		scr.waitForText(t, h, "line\r\nline\r\n")
		io.WriteString(w, "\x04")
		if exit := h.waitExit(t, p); exit.Code != 0 {
			t.Errorf("exit is %+v", exit)
		}
	}},
	{"the end of stdin leaves the terminal open", []need{needTTY}, func(t *testing.T, h *harness) {
		p, w, scr := h.startOnTerminal(t, h.plainSandbox(t), programCommand("cat"))
		io.WriteString(w, "line\r")
		w.Close()
		scr.waitForText(t, h, "line\r\nline\r\n")
		wait, cancel := context.WithTimeout(h.newContext(t), quietTime)
		defer cancel()
		if exit, err := p.Wait(wait); err == nil {
			t.Fatalf("the process ended with %+v when its client stopped typing", exit)
		}
		again := newScreen()
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdin: strings.NewReader("more\r\x04"), Stdout: again}); err != nil {
			t.Errorf("Attach: %v", err)
		}
		if !strings.HasSuffix(again.readText(), "more\r\nmore\r\n") {
			t.Errorf("the terminal showed %q", again.readText())
		}
	}},
	{"an Attach to a terminal reads from its first byte again", []need{needTTY}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		cmd := programCommand("cat")
		cmd.TTY, cmd.OpenStdin = &atoll.Size{Rows: 24, Cols: 80}, true
		p := h.startProcess(t, sb, cmd)
		h.typeText(t, p, "one\r", "one\r\none\r\n")
		h.typeText(t, p, "two\r", "one\r\none\r\ntwo\r\ntwo\r\n")
		h.killProcess(t, p)
	}},
	{"the last output on a terminal is not lost", []need{needTTY}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for i := range 10 {
			res := h.runCommand(t, sb, addTTY(scriptCommand("lines", 2000)))
			if n := strings.Count(string(res.Stdout), "\r\n"); n != 2000 || !strings.HasSuffix(string(res.Stdout), "\r\n2000\r\n") {
				t.Fatalf("run %d: %d lines of 2000 arrived", i, n)
			}
		}
	}},
	{"a terminal without arguments runs the user's shell", []need{needTTY}, func(t *testing.T, h *harness) {
		p, w, scr := h.startOnTerminal(t, h.plainSandbox(t), &atoll.Command{})
		io.WriteString(w, "echo one''word\r")
		scr.waitForText(t, h, "oneword\r\n")
		io.WriteString(w, "exit 7\r")
		if exit := h.waitExit(t, p); exit.Code != 7 {
			t.Errorf("exit is %+v, want code 7", exit)
		}
	}},
	{"a terminal without arguments is one process, whose arguments name the shell", []need{needTTY}, func(t *testing.T, h *harness) {
		sb := h.ownSandbox(t)
		p := h.startProcess(t, sb, addTTY(&atoll.Command{}))
		all, err := atoll.Processes(h.newContext(t), sb)
		if atoll.KindOf(err) == atoll.ErrUnsupported {
			t.Skip("the provider lists no processes")
		}
		if err != nil || len(all) != 1 || all[0].ID != p.ID() {
			t.Fatalf("Processes: %+v, %v; want only the terminal's process", all, err)
		}
		if args := all[0].Args; len(args) == 0 || !strings.HasPrefix(args[0], "/") {
			t.Errorf("the arguments are %q, want the path of a shell", args)
		}
		h.killProcess(t, p)
	}},
	{"^Z stops the foreground job and returns the terminal to the shell", []need{needTTY}, func(t *testing.T, h *harness) {
		for range 2 {
			if h.suspendJob(t) {
				return
			}
		}
		t.Error("^Z does not give the shell its terminal back")
	}},
	{"SIGKILL to the shell of a terminal ends its jobs", []need{needTTY}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, scr := h.startReady(t, sb, addTTY(scriptCommand("family")))
		h.killProcess(t, p)
		h.waitUntilDead(t, sb, scr.readText())
	}},
	{"SIGHUP to the process of a terminal ends its foreground jobs", []need{needTTY}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, scr := h.startReady(t, sb, addTTY(scriptCommand("family")))
		if err := p.Signal(h.newContext(t), atoll.SIGHUP); err != nil {
			t.Fatalf("Signal: %v", err)
		}
		if exit := h.waitExit(t, p); !h.killedBy(exit, atoll.SIGHUP) {
			t.Errorf("exit is %+v, want it ended by SIGHUP", exit)
		}
		h.waitUntilDead(t, sb, scr.readText())
	}},
	{"a main process may have a terminal", []need{needTTY}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("winch"), TTY: &atoll.Size{Rows: 31, Cols: 77}, OpenStdin: true})
		p, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		scr := newScreen()
		done := make(chan error, 1)
		go func() { done <- p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}) }()
		scr.waitForText(t, h, "31 77\r\n")
		if err := atoll.Resize(h.newContext(t), p, atoll.Size{Rows: 5, Cols: 6}); err != nil {
			t.Errorf("Resize: %v", err)
		}
		scr.waitForText(t, h, "5 6\r\n")
		h.killProcess(t, p)
		if err := <-done; err != nil {
			t.Errorf("Attach: %v", err)
		}
	}},
	{"a terminal is refused without Caps.TTY", nil, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.TTY {
			t.Skip("the provider has cap tty")
		}
		_, err := h.plainSandbox(t).Exec(h.newContext(t), addTTY(programCommand("true")))
		wantKind(t, "Exec", err, atoll.ErrUnsupported)
		h.wantRefused(t, atoll.Spec{Cmd: scriptArgs("ready"), TTY: &atoll.Size{Rows: 24, Cols: 80}}, atoll.ErrUnsupported)
	}},
}

// addTTY gives the command a terminal and returns it.
func addTTY(cmd *atoll.Command) *atoll.Command {
	cmd.TTY = &atoll.Size{Rows: 24, Cols: 80}
	return cmd
}

// startOnTerminal starts cmd on a terminal, and returns the process, a writer that types, and the
// screen.
func (h *harness) startOnTerminal(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) (atoll.Process, *io.PipeWriter, *screen) {
	t.Helper()
	r, w := newPipe(t)
	scr := newScreen()
	cmd = addTTY(cmd)
	cmd.Stdin, cmd.Stdout = r, scr
	return h.startProcess(t, sb, cmd), w, scr
}

// suspendJob reports whether ^Z stops the foreground job of a new terminal. A kernel may lose a stop
// during a fork or an exec. gVisor does so once in some tens of times, and then rarely reads more from
// that terminal. So the function presses the key repeatedly, as people do.
func (h *harness) suspendJob(t *testing.T) bool {
	t.Helper()
	p, w, scr := h.startOnTerminal(t, h.plainSandbox(t), &atoll.Command{})
	defer h.killProcess(t, p)
	io.WriteString(w, "sh -c 'echo be\"\"gin; exec sleep 1000'\r")
	scr.waitForText(t, h, "begin\r\n")
	for range 5 {
		io.WriteString(w, "\x1aecho ba''ck\r")
		if scr.showsWithin("back\r\n", h.shortLimit()/5) {
			return true
		}
	}
	t.Logf("there is no \"back\\r\\n\", only %q", scr.readText())
	return false
}

// killProcess kills the process and waits for its exit.
func (h *harness) killProcess(t *testing.T, p atoll.Process) {
	t.Helper()
	if err := p.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
		t.Errorf("Signal: %v", err)
	}
	h.waitExit(t, p)
}
