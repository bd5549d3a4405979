//go:build linux

package gvisor_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A terminal is one program on a terminal, typed at by a test.
type terminal struct {
	l       *lab
	p       atoll.Process
	keys    *io.PipeWriter
	screen  *screen
	skipped int // of the screen, seen before
}

func (l *lab) terminal(sb atoll.Sandbox, size atoll.Size, args ...string) *terminal {
	l.t.Helper()
	r, w := io.Pipe()
	t := &terminal{l: l, keys: w, screen: newScreen()}
	p, err := sb.Exec(l.ctx(), &atoll.Command{Args: args, TTY: &size, Stdin: r, Stdout: t.screen, Env: []string{"PS1=> ", "HISTFILE="}})
	l.must("exec", err)
	t.p = p
	l.t.Cleanup(func() { w.Close() })
	return t
}

// types sends keys.
func (t *terminal) types(keys string) {
	t.l.t.Helper()
	_, err := io.WriteString(t.keys, keys)
	t.l.must("type", err)
}

// sees waits for what was not on the screen before.
func (t *terminal) sees(want string) {
	t.l.t.Helper()
	t.skipped = len(t.screen.expectAfter(t.l.t, t.skipped, want))
}

// ends waits for the program's end.
func (t *terminal) ends() atoll.Exit {
	t.l.t.Helper()
	exit, err := t.p.Wait(t.l.ctx())
	t.l.must("wait", err)
	return exit
}

// runs waits until the command runs inside: until then what is typed is the
// shell's, which has the terminal in a mode of its own.
func (t *terminal) runs(sb atoll.Sandbox, command string) {
	t.l.t.Helper()
	t.l.poll(func() error {
		if !t.running(sb, command) {
			return fmt.Errorf("%s does not run; the screen:\n%s", command, t.screen)
		}
		return nil
	})
}

func (t *terminal) running(sb atoll.Sandbox, command string) bool {
	t.l.t.Helper()
	return t.l.sh(sb, "for p in /proc/[0-9]*; do case $(tr '\\0' ' ' 2>/dev/null < $p/cmdline) in '"+command+" ') echo $p;; esac; done") != ""
}

// bash is an interactive shell with job control; it has said its prompt.
func (l *lab) bash(sb atoll.Sandbox) *terminal {
	l.t.Helper()
	testenv.Need(l.t, testenv.Program("bash", "bash"))
	t := l.terminal(sb, atoll.Size{Rows: 24, Cols: 80}, "bash", "--norc", "--noprofile", "-i")
	t.sees("> ")
	return t
}

// A terminal has its size from the first moment, and a new one when it is given
// one, of which the programs hear.
func TestTerminalSize(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	if got := l.terminal(sb, atoll.Size{Rows: 33, Cols: 111}, "stty", "size"); true {
		got.sees("33 111")
		got.ends()
	}
	term := l.terminal(sb, atoll.Size{Rows: 10, Cols: 20}, "sh", "-c", `trap 'echo told; stty size' WINCH; echo ready; while :; do sleep 0.05; done`)
	term.sees("ready")
	for _, size := range []atoll.Size{{Rows: 50, Cols: 200}, {Rows: 1, Cols: 1}} {
		l.must("resize", atoll.Resize(l.ctx(), term.p, size))
		term.sees("told")
		term.sees(fmt.Sprintf("%d %d", size.Rows, size.Cols))
	}
	term.types("\x03")
	if exit := term.ends(); exit.Code != 130 {
		t.Errorf("after ^C: %v", exit)
	}
}

// The keys that make signals reach what is in the foreground, and nothing else.
func TestTerminalKeys(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	term := l.bash(sb)
	term.types("sleep 1000\r")
	term.runs(sb, "sleep 1000")
	term.types("\x03")
	term.sees("^C")
	term.types("echo code $?\r")
	term.sees("code 130")

	term.types("sleep 1001; echo after $?\r")
	term.runs(sb, "sleep 1001")
	term.types("\x1c") // ^\
	term.sees("after 131")

	term.types("cat > /root/typed\r")
	term.runs(sb, "cat")
	term.types("line one\rline two\r\x04")
	term.sees("> ")
	term.types("wc -l < /root/typed\r")
	term.sees("2\r\n")

	// What was typed before the signal is gone with it, alone or in one go.
	for _, keys := range [][]string{{"half a line", "\x03"}, {"half a line\x03"}} {
		term.types("cat\r")
		term.runs(sb, "cat")
		for _, k := range keys {
			term.types(k)
		}
		term.types("echo clean $?\r")
		term.sees("clean 130")
	}

	// One that is quoted is like any other, also when it comes alone.
	term.types("cat > /root/quoted\r")
	term.runs(sb, "cat")
	term.types("\x16")
	term.sees("^\b")
	term.types("\x03")
	term.sees("^C")
	term.types("\r\x04")
	term.sees("> ")
	term.types("od -An -tx1 /root/quoted\r")
	term.sees("03 0a")

	term.types("exit 7\r")
	if exit := term.ends(); exit.Code != 7 {
		t.Errorf("exit: %v", exit)
	}
}

// A shell has job control.
func TestTerminalJobs(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	term := l.bash(sb)
	if text := term.screen.String(); strings.Contains(text, "no job control") {
		t.Fatalf("bash says:\n%s", text)
	}
	term.types("sleep 1002\r")
	term.runs(sb, "sleep 1002")
	term.types("\x1a") // ^Z
	term.sees("Stopped")
	term.types("jobs\r")
	term.sees("Stopped")
	term.types("bg\r")
	term.sees("sleep 1002 &")
	term.types("fg\r")
	term.sees("sleep 1002")
	l.poll(func() error { // bash says what it is about to put into the foreground
		term.types("\x03")
		if term.running(sb, "sleep 1002") {
			return errors.New("^C does not end the job")
		}
		return nil
	})
	term.types("echo interrupted $?\r")
	term.sees("interrupted 130")
	// A shell that ends leaves its jobs to end as well, or to go on as they
	// wish; either way it does not hang.
	term.types("sleep 1003 &\r")
	term.sees("> ")
	term.types("exit\r")
	if exit := term.ends(); exit.Code != 0 && exit.Code != 130 {
		t.Errorf("exit with a job: %v", exit)
	}
}

// /dev/tty is the terminal, whatever the standard streams are. It has no name, but
// those that are made inside do.
func TestTerminalDevice(t *testing.T) {
	testenv.Need(t, testenv.Program("script", "bsdutils"))
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	term := l.terminal(sb, atoll.Size{Rows: 24, Cols: 80}, "sh", "-c", "tty; script -qc tty /dev/null; echo to the device > /dev/tty; read x < /dev/tty; echo got $x > /dev/tty; test -t 0 && test -t 1 && test -t 2 && echo all")
	term.sees("not a tty")
	term.sees("/dev/pts/0")
	term.sees("to the device")
	term.types("answer\r")
	term.sees("got answer")
	term.sees("all")
	if exit := term.ends(); exit.Code != 0 {
		t.Errorf("%v", exit)
	}
	if out := l.fails(sb, "echo x > /dev/tty"); strings.Contains(out, "x\n") && !strings.Contains(out, "/dev/tty") {
		t.Errorf("without a terminal: %q", out)
	}
}

// A program that takes the keys raw, as editors do, gets them all and makes no
// signals of them.
func TestTerminalRaw(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	term := l.terminal(sb, atoll.Size{Rows: 24, Cols: 80}, "sh", "-c", `saved=$(stty -g); stty raw -echo; echo ready; head -c 5 | od -An -tx1; stty "$saved"; stty -a | grep -c -w -- 'icanon'; echo back; read line; echo "$line"`)
	term.sees("ready")
	term.types("\x03\x1a\x1b[\r")
	term.sees("03 1a 1b 5b 0d")
	term.sees("back")
	term.types("typed\r")
	term.sees("typed\r\ntyped")
	if exit := term.ends(); exit.Code != 0 {
		t.Errorf("%v", exit)
	}
}
