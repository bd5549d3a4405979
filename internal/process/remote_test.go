//go:build unix

package process

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// remoteHandle is a process at the other end of a connection: a goroutine that sends back its
// input and reports the calls that it receives.
type remoteHandle struct {
	stdio Stdio
	sizes chan atoll.Size
	kill  chan struct{}
}

func (e *remoteHandle) PID() int { return 7 }

func (e *remoteHandle) Wait() atoll.Exit {
	defer closeFiles(e.stdio.Stdout, e.stdio.Stderr, e.stdio.Stdin)
	echoed := make(chan struct{})
	go func() {
		defer close(echoed)
		_, _ = io.Copy(e.stdio.Stdout, e.stdio.Stdin)
	}()
	select {
	case <-echoed:
		return atoll.Exit{Code: 3}
	case <-e.kill:
		return atoll.Exit{Code: 137, Signal: atoll.SIGKILL}
	}
}

func (e *remoteHandle) Signal(atoll.Signal) error { return os.ErrProcessDone }

func (e *remoteHandle) Kill() error {
	close(e.kill)
	return nil
}

func (e *remoteHandle) Resize(_ context.Context, size atoll.Size) error {
	e.sizes <- size
	return nil
}

func startElsewhere(t *testing.T, cmd *atoll.Command) (*remoteHandle, atoll.Process) {
	t.Helper()
	table := newTable(t)
	table.Remote = true
	e := &remoteHandle{sizes: make(chan atoll.Size, 1), kill: make(chan struct{})}
	p, err := table.Start(t.Context(), "", cmd, func(s Stdio) (Handle, error) {
		e.stdio = s
		return e, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return e, p
}

func TestRemoteStreams(t *testing.T) {
	var out safeBuffer
	_, p := startElsewhere(t, &atoll.Command{Args: []string{"x"}, Stdin: strings.NewReader("there and back"), Stdout: &out})
	if exit := mustWait(t, p); exit.Code != 3 || out.String() != "there and back" {
		t.Errorf("exit %+v, output %q; want the end of stdin to end it", exit, out.String())
	}
}

// A remote terminal is not a terminal here: the table neither echoes nor changes bytes.
func TestRemoteTerminal(t *testing.T) {
	e, p := startElsewhere(t, &atoll.Command{Args: []string{"x"}, TTY: &atoll.Size{Rows: 1, Cols: 2}})
	var out safeBuffer
	done := make(chan error, 1)
	go func() { done <- p.Attach(t.Context(), &atoll.Attachment{Stdout: &out}) }()
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("^C is \x03\r\n")}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what was typed", func() bool { return out.String() == "^C is \x03\r\n" })
	size := atoll.Size{Rows: 30, Cols: 90}
	if err := atoll.Resize(t.Context(), p, size); err != nil {
		t.Fatal(err)
	}
	if got := <-e.sizes; got != size {
		t.Errorf("Resize got %+v, want %+v", got, size)
	}
	if err := p.Signal(t.Context(), atoll.SIGKILL); err != nil {
		t.Fatal(err)
	}
	mustWait(t, p)
	if err := <-done; err != nil {
		t.Errorf("Attach: %v", err)
	}
	if err := atoll.Resize(t.Context(), p, size); atoll.KindOf(err) != atoll.ErrStopped {
		t.Errorf("Resize after the end: %v", err)
	}
}
