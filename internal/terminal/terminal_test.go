package terminal_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/terminal"
	"github.com/seed46cd37a8/atoll/provider/local"
)

func TestInput(t *testing.T) {
	for typed, want := range map[string]string{
		"":             "\x04",
		"ls\n":         "ls\n\x04",
		"ls\r":         "ls\r\x04",
		"half a line":  "half a line\x04\x04",
		"one\ntwo":     "one\ntwo\x04\x04",
		"a\x04already": "a\x04already\x04\x04",
	} {
		for name, r := range map[string]io.Reader{
			"as it comes": strings.NewReader(typed), "byte by byte": iotest.OneByteReader(strings.NewReader(typed)), "with its end": iotest.DataErrReader(strings.NewReader(typed)),
		} {
			if got, err := io.ReadAll(iotest.OneByteReader(terminal.Input(r))); err != nil || string(got) != want {
				t.Errorf("%q %s: %q, %v; want %q", typed, name, got, err, want)
			}
		}
	}
	broken := errors.New("broken")
	if got, err := io.ReadAll(terminal.Input(io.MultiReader(strings.NewReader("ls"), iotest.ErrReader(broken)))); err != broken || string(got) != "ls" {
		t.Errorf("a client that is gone: %q, %v; want no end of file", got, err)
	}
}

func TestHangUpAndBreakPipe(t *testing.T) {
	p, err := local.New(local.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	tty := &atoll.Size{Rows: 24, Cols: 80}
	start := func(tty *atoll.Size, script string) atoll.Process {
		t.Helper()
		seen := make(chan struct{}, 1)
		proc, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", script}, TTY: tty, OpenStdin: true, Stdout: writer(func(b []byte) {
			if bytes.Contains(b, []byte("ready")) {
				seen <- struct{}{}
			}
		})})
		if err != nil {
			t.Fatal(err)
		}
		<-seen
		return proc
	}
	rc := filepath.Join(t.TempDir(), "bashrc")
	if err := os.WriteFile(rc, []byte("trap '' HUP; PS1='ready '"), 0o600); err != nil {
		t.Fatal(err)
	}
	typed := func(p atoll.Process, text string) atoll.Process {
		t.Helper()
		if err := p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader(text)}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		what string
		proc atoll.Process
		do   func(atoll.Process)
		want string
	}{
		{"a terminal", start(tty, "echo ready; sleep 1000"), func(p atoll.Process) { terminal.HangUp(t.Context(), p) }, "killed by SIGHUP"},
		{"one that has missed it", start(tty, "trap '' HUP; echo ready; cat; exit 3"), func(p atoll.Process) { terminal.HangUp(t.Context(), p) }, "exited with code 3"},
		{"a shell that has missed it, with an unfinished line", typed(start(tty, "exec bash --rcfile "+rc), "unfinished"), func(p atoll.Process) { terminal.HangUp(t.Context(), p) }, "exited with code 0"},
		{"a pipe", start(nil, "echo ready; sleep 1000"), func(p atoll.Process) { terminal.BreakPipe(t.Context(), p) }, "killed by SIGPIPE"},
	} {
		c.do(c.proc)
		_ = c.proc.Signal(t.Context(), atoll.SIGKILL) // it should have ended
		if exit, err := c.proc.Wait(t.Context()); err != nil || exit.String() != c.want {
			t.Errorf("%s: %v, %v; want %s", c.what, exit, err, c.want)
		}
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}
