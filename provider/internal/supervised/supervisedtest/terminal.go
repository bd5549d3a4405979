//go:build linux

package supervisedtest

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A terminal is one program on a terminal at which a test types.
type terminal struct {
	l       *Lab
	p       atoll.Process
	keys    *io.PipeWriter
	screen  *Screen
	skipped int // length of the screen's content that was seen before
}

func (l *Lab) openTerminal(sb atoll.Sandbox, size atoll.Size, args ...string) *terminal {
	l.T.Helper()
	r, w := io.Pipe()
	t := &terminal{l: l, keys: w, screen: &Screen{}}
	p, err := sb.Exec(l.Context(), &atoll.Command{Args: args, TTY: &size, Stdin: r, Stdout: t.screen, Env: []string{"PS1=> ", "HISTFILE="}})
	l.Must("exec", err)
	t.p = p
	l.T.Cleanup(func() { w.Close() })
	return t
}

// typeKeys sends keys.
func (t *terminal) typeKeys(keys string) {
	t.l.T.Helper()
	_, err := io.WriteString(t.keys, keys)
	t.l.Must("type", err)
}

// awaitText waits for text that was not on the screen before.
func (t *terminal) awaitText(want string) {
	t.l.T.Helper()
	t.skipped = len(t.screen.ExpectAfter(t.l.T, t.skipped, want))
}

// awaitExit waits for the program's end.
func (t *terminal) awaitExit() atoll.Exit {
	t.l.T.Helper()
	exit, err := t.p.Wait(t.l.Context())
	t.l.Must("wait", err)
	return exit
}

// awaitCommand waits until the command runs inside: until then the shell, which has the
// terminal in a mode of its own, gets the keys.
func (t *terminal) awaitCommand(sb atoll.Sandbox, command string) {
	t.l.T.Helper()
	t.l.Poll(func() error {
		if !t.isRunning(sb, command) {
			return fmt.Errorf("%s does not run; the screen:\n%s", command, t.screen)
		}
		return nil
	})
}

func (t *terminal) isRunning(sb atoll.Sandbox, command string) bool {
	t.l.T.Helper()
	return t.l.Sh(sb, "for p in /proc/[0-9]*; do case $(tr '\\0' ' ' 2>/dev/null < $p/cmdline) in '"+command+" ') echo $p;; esac; done") != ""
}

// openBash starts an interactive shell with job control, and waits for its prompt.
func (l *Lab) openBash(sb atoll.Sandbox) *terminal {
	l.T.Helper()
	testenv.Need(l.T, testenv.Program("bash", "bash"))
	t := l.openTerminal(sb, atoll.Size{Rows: 24, Cols: 80}, "bash", "--norc", "--noprofile", "-i")
	t.awaitText("> ")
	return t
}

// CheckTerminalSize checks that a terminal has its size from the start, and that programs notice a new one.
func (l *Lab) CheckTerminalSize() {
	l.T.Helper()
	sb := l.NewSandbox(atoll.Spec{})
	if got := l.openTerminal(sb, atoll.Size{Rows: 33, Cols: 111}, "stty", "size"); true {
		got.awaitText("33 111")
		got.awaitExit()
	}
	term := l.openTerminal(sb, atoll.Size{Rows: 10, Cols: 20}, "sh", "-c", `trap 'echo told; stty size' WINCH; echo ready; while :; do sleep 0.05; done`)
	term.awaitText("ready")
	for _, size := range []atoll.Size{{Rows: 50, Cols: 200}, {Rows: 1, Cols: 1}} {
		l.Must("resize", atoll.Resize(l.Context(), term.p, size))
		term.awaitText("told")
		term.awaitText(fmt.Sprintf("%d %d", size.Rows, size.Cols))
	}
	term.typeKeys("\x03")
	if exit := term.awaitExit(); exit.Code != 130 {
		l.T.Errorf("after ^C: %v", exit)
	}
}

// CheckTerminalKeys checks that the keys that make signals reach the foreground, and nothing else.
func (l *Lab) CheckTerminalKeys() {
	l.T.Helper()
	sb := l.NewSandbox(atoll.Spec{})
	term := l.openBash(sb)
	term.typeKeys("sleep 1000\r")
	term.awaitCommand(sb, "sleep 1000")
	term.typeKeys("\x03")
	term.awaitText("^C")
	term.typeKeys("echo code $?\r")
	term.awaitText("code 130")

	term.typeKeys("sleep 1001; echo after $?\r")
	term.awaitCommand(sb, "sleep 1001")
	term.typeKeys("\x1c") // ^\
	term.awaitText("after 131")

	term.typeKeys("cat >/root/typed\r")
	term.awaitCommand(sb, "cat")
	term.typeKeys("line one\rline two\r\x04")
	term.awaitText("> ")
	term.typeKeys("wc -l < /root/typed\r")
	term.awaitText("2\r\n")

	// A signal drops what was typed before it, alone or in one go.
	for _, keys := range [][]string{{"half a line", "\x03"}, {"half a line\x03"}} {
		term.typeKeys("cat\r")
		term.awaitCommand(sb, "cat")
		for _, k := range keys {
			term.typeKeys(k)
		}
		term.awaitText("^C")
		term.awaitText("> ") // bash may drop what comes before its prompt
		term.typeKeys("echo clean $?\r")
		term.awaitText("clean 130")
	}

	// A quoted key is like any other, even if it comes alone.
	term.typeKeys("cat >/root/quoted\r")
	term.awaitCommand(sb, "cat")
	term.typeKeys("\x16")
	term.awaitText("^\b")
	term.typeKeys("\x03")
	term.awaitText("^C")
	term.typeKeys("\r\x04")
	term.awaitText("> ")
	term.typeKeys("od -An -tx1 /root/quoted\r")
	term.awaitText("03 0a")

	term.typeKeys("exit 7\r")
	if exit := term.awaitExit(); exit.Code != 7 {
		l.T.Errorf("exit: %v", exit)
	}
}

// CheckTerminalJobs checks that a shell has job control.
func (l *Lab) CheckTerminalJobs() {
	l.T.Helper()
	sb := l.NewSandbox(atoll.Spec{})
	term := l.openBash(sb)
	if text := term.screen.String(); strings.Contains(text, "no job control") {
		l.T.Fatalf("bash says:\n%s", text)
	}
	term.typeKeys("sleep 1002\r")
	term.awaitCommand(sb, "sleep 1002")
	term.typeKeys("\x1a") // ^Z
	term.awaitText("Stopped")
	term.typeKeys("jobs\r")
	term.awaitText("Stopped")
	term.typeKeys("bg\r")
	term.awaitText("sleep 1002 &")
	term.typeKeys("fg\r")
	term.awaitText("sleep 1002")
	l.Poll(func() error { // bash prints the command before it is in the foreground
		term.typeKeys("\x03")
		if term.isRunning(sb, "sleep 1002") {
			return errors.New("^C does not end the job")
		}
		return nil
	})
	term.typeKeys("echo interrupted $?\r")
	term.awaitText("interrupted 130")
	// When a shell ends, its jobs may end as well, or continue as they
	// wish; either way it does not hang.
	term.typeKeys("sleep 1003 &\r")
	term.awaitText("> ")
	term.typeKeys("exit\r")
	if exit := term.awaitExit(); exit.Code != 0 && exit.Code != 130 {
		l.T.Errorf("exit with a job: %v", exit)
	}
}

// CheckTerminalDevice checks that /dev/tty is the terminal, whatever the standard streams are, and that it has a name, as those
// have that are made inside.
func (l *Lab) CheckTerminalDevice() {
	l.T.Helper()
	testenv.Need(l.T, testenv.Program("script", "bsdutils"))
	sb := l.NewSandbox(atoll.Spec{})
	term := l.openTerminal(sb, atoll.Size{Rows: 24, Cols: 80}, "sh", "-c", "tty; script -qc tty /dev/null; echo to the device > /dev/tty; read x < /dev/tty; echo got $x > /dev/tty; test -t 0 && test -t 1 && test -t 2 && echo all")
	term.awaitText("/dev/pts/0")
	term.awaitText("/dev/pts/1")
	term.awaitText("to the device")
	term.typeKeys("answer\r")
	term.awaitText("got answer")
	term.awaitText("all")
	if exit := term.awaitExit(); exit.Code != 0 {
		l.T.Errorf("%v", exit)
	}
	if out := l.FailSh(sb, "echo x > /dev/tty"); strings.Contains(out, "x\n") && !strings.Contains(out, "/dev/tty") {
		l.T.Errorf("without a terminal: %q", out)
	}
}

// CheckTerminalRaw checks that a program that reads keys raw, as editors do, gets them all, and that none makes a signal.
func (l *Lab) CheckTerminalRaw() {
	l.T.Helper()
	sb := l.NewSandbox(atoll.Spec{})
	term := l.openTerminal(sb, atoll.Size{Rows: 24, Cols: 80}, "sh", "-c", `saved=$(stty -g); stty raw -echo; echo ready; head -c 5 | od -An -tx1; stty "$saved"; stty -a | grep -c -w -- 'icanon'; echo back; read line; echo "$line"`)
	term.awaitText("ready")
	term.typeKeys("\x03\x1a\x1b[\r")
	term.awaitText("03 1a 1b 5b 0d")
	term.awaitText("back")
	term.typeKeys("typed\r")
	term.awaitText("typed\r\ntyped")
	if exit := term.awaitExit(); exit.Code != 0 {
		l.T.Errorf("%v", exit)
	}
}
