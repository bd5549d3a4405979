//go:build unix

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// hostHandle is the smallest backend: a process of this machine in a session of its own.
type hostHandle struct{ cmd *exec.Cmd }

func startHost(args []string, tty bool) func(Stdio) (Handle, error) {
	return func(s Stdio) (Handle, error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, s.Stdout, s.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: tty}
		if err := cmd.Start(); err != nil {
			return nil, atoll.E("exec", "", atoll.ErrExecFailed, err)
		}
		return &hostHandle{cmd}, nil
	}
}

func (h *hostHandle) PID() int { return h.cmd.Process.Pid }

func (h *hostHandle) Wait() atoll.Exit {
	_ = h.cmd.Wait()
	ws := h.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return atoll.Exit{Code: 128 + int(ws.Signal()), Signal: atoll.Signal(ws.Signal())}
	}
	return atoll.Exit{Code: ws.ExitStatus()}
}

func (h *hostHandle) Signal(sig atoll.Signal) error { return h.cmd.Process.Signal(syscall.Signal(sig)) }
func (h *hostHandle) Kill() error                   { return syscall.Kill(-h.PID(), syscall.SIGKILL) }

func newTable(t *testing.T) *Table {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	table := NewTable()
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		goleak.VerifyNone(t, leaks)
	})
	return table
}

func mustStart(t *testing.T, table *Table, cmd *atoll.Command) atoll.Process {
	t.Helper()
	p, err := table.Start(t.Context(), "", cmd, startHost(cmd.Args, cmd.TTY != nil))
	if err != nil {
		t.Fatalf("Start %q: %v", cmd.Args, err)
	}
	return p
}

func shellCommand(script string) *atoll.Command {
	return &atoll.Command{Args: []string{"/bin/sh", "-c", script}}
}

func mustWait(t *testing.T, p atoll.Process) atoll.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(30*time.Second))
	defer cancel()
	exit, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("Wait: %v", err)
	}
	return exit
}

// safeBuffer is a bytes.Buffer for two goroutines.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// eventually polls, because what it waits for happens in other processes.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(testenv.Scale(30 * time.Second))
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestExitsAndStreams(t *testing.T) {
	table := newTable(t)
	for _, tt := range []struct {
		name, script, stdin string
		stdout, stderr      string
		exit                atoll.Exit
	}{
		{name: "code", script: "exit 3", exit: atoll.Exit{Code: 3}},
		{name: "signal", script: "kill -TERM $$", exit: atoll.Exit{Code: 143, Signal: atoll.SIGTERM}},
		{name: "streams apart", script: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{name: "stdin to its end", script: "cat; echo end", stdin: "a\x00b", stdout: "a\x00bend\n"},
		{name: "no stdin", script: "cat; echo end", stdout: "end\n"},
		{name: "stdin not read", script: "exec <&-; echo x", stdin: strings.Repeat("x", 1<<20), stdout: "x\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			cmd := shellCommand(tt.script)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if tt.stdin != "" {
				cmd.Stdin = strings.NewReader(tt.stdin)
			}
			exit := mustWait(t, mustStart(t, table, cmd))
			if exit.Duration <= 0 {
				t.Errorf("duration %v, want more than 0", exit.Duration)
			}
			exit.Duration = 0
			if exit != tt.exit || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("%+v, stdout %q, stderr %q; want %+v, %q, %q", exit, &stdout, &stderr, tt.exit, tt.stdout, tt.stderr)
			}
		})
	}
}

// exclusiveWriter fails the test when two goroutines write at once.
type exclusiveWriter struct {
	t  *testing.T
	mu sync.Mutex
	n  int
}

func (o *exclusiveWriter) Write(p []byte) (int, error) {
	if !o.mu.TryLock() {
		o.t.Error("two writes at once")
		return len(p), nil
	}
	defer o.mu.Unlock()
	o.n += len(p)
	runtime.Gosched()
	return len(p), nil
}

func TestOneWriterForBothStreams(t *testing.T) {
	w := &exclusiveWriter{t: t}
	cmd := shellCommand("for i in 1 2 3 4; do head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; done")
	cmd.Stdout, cmd.Stderr = w, w
	mustWait(t, mustStart(t, newTable(t), cmd))
	if w.n != 800000 {
		t.Errorf("got %d bytes, want 800000", w.n)
	}
}

// uncomparable writers must not make Start panic.
type uncomparable struct{ f []func([]byte) }

func (u uncomparable) Write(p []byte) (int, error) { u.f[0](p); return len(p), nil }

func TestUncomparableWriters(t *testing.T) {
	var got safeBuffer
	w := uncomparable{[]func([]byte){func(p []byte) { got.Write(p) }}}
	cmd := shellCommand("echo a; echo b >&2")
	cmd.Stdout, cmd.Stderr = w, w
	mustWait(t, mustStart(t, newTable(t), cmd))
	if s := got.String(); len(s) != 4 {
		t.Errorf("got %q", s)
	}
}

func TestUnreadOutputNeverBlocks(t *testing.T) {
	table := newTable(t)
	cmd := shellCommand("head -c 8388608 /dev/zero; echo the end")
	cmd.OutputLimit = 16
	p := mustStart(t, table, cmd)
	if exit := mustWait(t, p); !exit.Success() {
		t.Fatalf("exit %v", exit)
	}
	var out bytes.Buffer
	var gap string
	err := p.Attach(t.Context(), &atoll.Attachment{Stdout: &out, Gap: func(s atoll.Stream, from, to int64) {
		gap = fmt.Sprint(s, " ", from, " ", to, " after ", out.Len())
	}})
	if err != nil || out.String() != strings.Repeat("\x00", 8)+"the end\n" || gap != "stdout 0 8388600 after 0" {
		t.Errorf("Attach: %v, %q, gap %q", err, &out, gap)
	}
}

func TestLargeOutputArrivesWhole(t *testing.T) {
	h := &hash{}
	cmd := shellCommand("seq 1 1200000")
	cmd.Stdout = h
	mustWait(t, mustStart(t, newTable(t), cmd))
	if h.n != 8488896 || h.bad != "" {
		t.Errorf("got %d bytes, want 8488896; first wrong line %q", h.n, h.bad)
	}
}

// hash checks that it is written the lines 1, 2, 3, ...
type hash struct {
	n    int
	line int
	rest []byte
	bad  string
}

func (h *hash) Write(p []byte) (int, error) {
	h.n += len(p)
	h.rest = append(h.rest, p...)
	for {
		line, rest, ok := bytes.Cut(h.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		h.line++
		if want := fmt.Sprint(h.line); string(line) != want && h.bad == "" {
			h.bad = string(line)
		}
		h.rest = rest
	}
}

func TestBackPressure(t *testing.T) {
	table := newTable(t)
	r, w := io.Pipe()
	cmd := shellCommand("head -c 4194304 /dev/zero; echo done >&2")
	cmd.Stdout, cmd.OutputLimit = w, 64<<10
	p := mustStart(t, table, cmd)
	eventually(t, "the ring is full", func() bool { return table.List()[0].Stdout.Written >= 64<<10 })
	if st := table.List()[0]; st.Stderr.Written != 0 || st.Exit != nil {
		t.Errorf("the process was not held back: %+v", st)
	}
	go func() {
		n, _ := io.Copy(io.Discard, r)
		if n != 4194304 {
			t.Errorf("read %d bytes, want 4194304", n)
		}
	}()
	mustWait(t, p)
	w.Close()
}

func TestDetachUnblocksTheProcess(t *testing.T) {
	fail := errors.New("writer failed")
	for _, tt := range []struct {
		name string
		make func(cancel func()) io.Writer
		want error
	}{
		{"writer error", func(func()) io.Writer { return writerFunc(func([]byte) (int, error) { return 0, fail }) }, fail},
		{"short write", func(func()) io.Writer { return writerFunc(func(p []byte) (int, error) { return 0, nil }) }, io.ErrShortWrite},
		{"ctx", func(cancel func()) io.Writer {
			return writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
		}, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := shellCommand("read x; head -c 4194304 /dev/zero")
			cmd.OpenStdin, cmd.OutputLimit = true, 64<<10
			p := mustStart(t, newTable(t), cmd)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var other safeBuffer
			err := p.Attach(ctx, &atoll.Attachment{Stdin: strings.NewReader("go\n"), Stdout: tt.make(cancel), Stderr: &other})
			if !errors.Is(err, tt.want) {
				t.Errorf("Attach: %v, want %v", err, tt.want)
			}
			mustWait(t, p)
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestBlockedWriterIsDetachedWhenCtxEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := mustStart(t, newTable(t), shellCommand("head -c 4194304 /dev/zero"))
	blocked, unblock := make(chan struct{}), make(chan struct{})
	attached := make(chan error)
	go func() {
		var first sync.Once
		w := writerFunc(func(p []byte) (int, error) { first.Do(func() { close(blocked) }); <-unblock; return len(p), nil })
		attached <- p.Attach(ctx, &atoll.Attachment{Stdout: w})
	}()
	<-blocked
	cancel()
	mustWait(t, p) // although the writer still blocks
	close(unblock)
	if err := <-attached; !errors.Is(err, context.Canceled) {
		t.Errorf("Attach: %v, want context.Canceled", err)
	}
}

func TestAttachReplaysAndFollows(t *testing.T) {
	table := newTable(t)
	cmd := shellCommand("echo one; echo two >&2; read x; echo $x")
	cmd.OpenStdin = true
	started := mustStart(t, table, cmd)
	p, err := table.Get(started.ID())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first lines", func() bool {
		st := table.List()[0]
		return st.Stdout.Written == 4 && st.Stderr.Written == 4
	})
	var now bytes.Buffer
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdout: &now, NoFollow: true}); err != nil || now.String() != "one\n" {
		t.Errorf("NoFollow: %v, %q", err, &now)
	}
	var out, errs, late bytes.Buffer
	err = p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("three\n"), Stdout: &out, Stderr: &errs, StdoutFrom: 2})
	if err != nil || out.String() != "e\nthree\n" || errs.String() != "two\n" {
		t.Errorf("from 2: %v, %q, %q", err, &out, &errs)
	}
	mustWait(t, p)
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdout: &late, StdoutFrom: atoll.FromNow}); err != nil || late.Len() > 0 {
		t.Errorf("FromNow after the end: %v, %q", err, &late)
	}
	err = p.Attach(t.Context(), &atoll.Attachment{Stdout: &late, StdoutFrom: 11})
	if !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("past the end: %v, want ErrInvalid", err)
	}
}

func TestAttachStdinAlone(t *testing.T) {
	cmd := shellCommand("cat >/dev/null; exit 5")
	cmd.OpenStdin = true
	p := mustStart(t, newTable(t), cmd)
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("x")}); err != nil {
		t.Errorf("Attach: %v", err)
	}
	if exit := mustWait(t, p); exit.Code != 5 {
		t.Errorf("exit %v, want code 5: the end of an attachment's stdin closes the process's", exit)
	}
}

func TestBackgroundChildDoesNotHoldWait(t *testing.T) {
	for _, script := range []string{"sleep 60 & echo $!", "(sleep 60; echo late) & echo $!", "yes >&2 & echo $!"} {
		t.Run(script, func(t *testing.T) {
			var out bytes.Buffer
			cmd := shellCommand(script)
			cmd.Stdout, cmd.Stderr = &out, io.Discard
			p := mustStart(t, newTable(t), cmd)
			begin := time.Now()
			exit := mustWait(t, p)
			if took := time.Since(begin); !exit.Success() || took > atoll.DrainTimeout+testenv.Scale(10*time.Second) {
				t.Errorf("%v after %v", exit, took)
			}
			var pid int
			if _, err := fmt.Sscan(out.String(), &pid); err != nil {
				t.Fatalf("stdout %q: %v", &out, err)
			}
			if err := syscall.Kill(pid, 0); err != nil {
				t.Errorf("the background child did not live on: %v", err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSlowReaderGetsEverything(t *testing.T) {
	// The process ends while most of its output is still in the pipe and the
	// ring; the drain must not cut it off.
	var n int
	cmd := shellCommand("head -c 300000 /dev/zero; sleep 60 >&2 & kill -9 $$")
	cmd.OutputLimit = 1000
	cmd.Stdout = writerFunc(func(p []byte) (int, error) {
		n += len(p)
		time.Sleep(3 * time.Millisecond) // slow on purpose: 300 writes outlast the drain
		return len(p), nil
	})
	table := newTable(t)
	p := mustStart(t, table, cmd)
	mustWait(t, p)
	if n != 300000 {
		t.Errorf("got %d bytes, want 300000", n)
	}
	_ = syscall.Kill(-table.List()[0].PID, syscall.SIGKILL)
}

func TestTimeout(t *testing.T) {
	var out bytes.Buffer
	for timeout := testenv.Scale(time.Second); out.Len() == 0 && timeout < testenv.Scale(time.Minute); timeout *= 4 { // until it has begun in time
		cmd := shellCommand("sleep 60 & echo started; sleep 600")
		cmd.Timeout = atoll.Duration(timeout)
		cmd.Stdout = &out
		exit := mustWait(t, mustStart(t, newTable(t), cmd))
		if exit.Code != atoll.ExitTimedOut || !exit.TimedOut {
			t.Errorf("exit %+v", exit)
		}
		if d := time.Duration(exit.Duration); d > timeout+testenv.Scale(9*time.Second) {
			t.Errorf("took %v with a timeout of %v", d, timeout)
		}
	}
	if out.String() != "started\n" {
		t.Errorf("stdout %q", &out)
	}
	cmd := shellCommand("exit 4")
	cmd.Timeout = atoll.Duration(time.Hour)
	if exit := mustWait(t, mustStart(t, newTable(t), cmd)); exit.Code != 4 || exit.TimedOut {
		t.Errorf("in time: exit %+v", exit)
	}
}

func TestStuckStdinHoldsNothing(t *testing.T) {
	r, w := io.Pipe()
	table := NewTable()
	cmd := shellCommand("echo x")
	cmd.Stdin = r
	mustWait(t, mustStart(t, table, cmd))
	closed := make(chan struct{})
	go func() { table.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(testenv.Scale(10 * time.Second)):
		t.Fatal("Close waits for a stuck Stdin")
	}
	w.Close()
}

func TestSignal(t *testing.T) {
	table := newTable(t)
	p := mustStart(t, table, shellCommand("trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done"))
	eventually(t, "ready", func() bool { return table.List()[0].Stdout.Written > 0 })
	if err := p.Signal(t.Context(), 65); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("signal 65: %v, want ErrInvalid", err)
	}
	if err := p.Signal(t.Context(), atoll.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if exit := mustWait(t, p); exit.Code != 7 {
		t.Errorf("exit %v, want code 7", exit)
	}
	for _, sig := range []atoll.Signal{atoll.SIGTERM, atoll.SIGKILL} {
		if err := p.Signal(t.Context(), sig); !errors.Is(err, atoll.ErrStopped) || !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%v after the end: %v, want ErrStopped", sig, err)
		}
	}
}

func TestWait(t *testing.T) {
	table := newTable(t)
	cmd := shellCommand("read x; exit 9")
	cmd.OpenStdin = true
	p := mustStart(t, table, cmd)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended ctx: %v", err)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 9 {
				t.Errorf("Wait: %v, %v", exit, err)
			}
		})
	}
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("\n")}); err != nil {
		t.Error(err)
	}
	all.Wait()
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 9 {
		t.Errorf("Wait with an ended ctx after the end: %v, %v", exit, err)
	}
}

func TestTerminal(t *testing.T) {
	table := newTable(t)
	in, typed := io.Pipe()
	var screen safeBuffer
	cmd := shellCommand(`test -t 0 && test -t 1 && test -t 2 && echo tty
		stty size; trap 'stty size; echo resized' WINCH; trap 'echo interrupted' INT
		echo ready; while :; do sleep 0.02; done`)
	cmd.TTY = &atoll.Size{Rows: 21, Cols: 77}
	cmd.Stdin, cmd.Stdout = in, &screen
	p := mustStart(t, table, cmd)
	eventually(t, "ready", func() bool { return strings.Contains(screen.String(), "ready\r\n") })
	if s := screen.String(); !strings.HasPrefix(s, "tty\r\n21 77\r\n") {
		t.Errorf("screen %q", s)
	}
	if err := atoll.Resize(t.Context(), p, atoll.Size{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the resize", func() bool { return strings.Contains(screen.String(), "30 100\r\nresized") })
	if _, err := typed.Write([]byte("\x03")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the interrupt", func() bool { return strings.Contains(screen.String(), "interrupted") })
	typed.Close() // does not close the terminal
	if err := p.Signal(t.Context(), atoll.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit := mustWait(t, p); exit.Signal != atoll.SIGKILL {
		t.Errorf("exit %v", exit)
	}
	if err := atoll.Resize(t.Context(), p, atoll.Size{Rows: 1, Cols: 1}); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("resize after the end: %v, want ErrStopped", err)
	}
	if st := table.List()[0]; !st.TTY || st.Stderr.Written != 0 {
		t.Errorf("status %+v", st)
	}
	if err := atoll.Resize(t.Context(), mustStart(t, table, shellCommand(":")), atoll.Size{}); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("resize without a terminal: %v, want ErrInvalid", err)
	}
}

func TestBackgroundChildOnATerminalDoesNotHoldWait(t *testing.T) {
	table := newTable(t)
	cmd := shellCommand("trap '' HUP; sleep 60 & echo $!")
	cmd.TTY = &atoll.Size{Rows: 24, Cols: 80}
	var screen bytes.Buffer
	cmd.Stdout = &screen
	p := mustStart(t, table, cmd)
	begin := time.Now()
	mustWait(t, p)
	if took := time.Since(begin); took > atoll.DrainTimeout+testenv.Scale(10*time.Second) {
		t.Errorf("Wait took %v", took)
	}
	var pid int
	if _, err := fmt.Sscan(screen.String(), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the background child did not live on: %v", err)
	}
}

func TestTerminalLosesNothingAtTheEnd(t *testing.T) {
	table := newTable(t)
	for range 20 {
		cmd := shellCommand("seq 1 2000")
		cmd.TTY = &atoll.Size{Rows: 24, Cols: 80}
		var screen bytes.Buffer
		cmd.Stdout = &screen
		mustWait(t, mustStart(t, table, cmd))
		if !strings.HasSuffix(screen.String(), "\r\n2000\r\n") {
			s := screen.String()
			t.Fatalf("%d bytes that end with %q", len(s), s[max(0, len(s)-20):])
		}
	}
}

func TestTerminalThatTheProcessClosesFirst(t *testing.T) {
	table := newTable(t)
	for range 5 {
		cmd := shellCommand("echo bye; exec <&- >&- 2>&-; sleep 0.02; exit 3")
		cmd.TTY = &atoll.Size{Rows: 24, Cols: 80}
		var screen bytes.Buffer
		cmd.Stdout = &screen
		if exit := mustWait(t, mustStart(t, table, cmd)); exit.Code != 3 || screen.String() != "bye\r\n" {
			t.Errorf("exit %v, screen %q; want no hangup", exit, &screen)
		}
	}
}

// hookedHandle is a backend that receives input through Terminal.
type hookedHandle struct {
	Handle
	told chan string
}

func (h *hookedHandle) Input(master *os.File, p []byte) error {
	h.told <- string(p)
	_, err := master.Write(p)
	return err
}
func (h *hookedHandle) Resized() { h.told <- "resized" }

func TestTerminalHooks(t *testing.T) {
	told := make(chan string, 10)
	cmd := shellCommand("read x")
	cmd.TTY = &atoll.Size{Rows: 1, Cols: 1}
	p, err := newTable(t).Start(t.Context(), "t", cmd, func(s Stdio) (Handle, error) {
		h, err := startHost(cmd.Args, true)(s)
		return &hookedHandle{h, told}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.Resize(t.Context(), p, atoll.Size{Rows: 2, Cols: 2}); err != nil {
		t.Error(err)
	}
	if got := <-told; got != "resized" {
		t.Errorf("told %q", got)
	}
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("hi\n")}); err != nil {
		t.Error(err)
	}
	if got := <-told; got != "hi\n" {
		t.Errorf("told %q", got)
	}
	mustWait(t, p)
}

func TestTableIDs(t *testing.T) {
	table := newTable(t)
	cmd := shellCommand(":")
	p, err := table.Start(t.Context(), "main", cmd, startHost(cmd.Args, false))
	if err != nil || p.ID() != "main" {
		t.Fatalf("Start: %v", err)
	}
	if _, err := table.Start(t.Context(), "main", cmd, startHost(cmd.Args, false)); !errors.Is(err, atoll.ErrAlreadyExists) {
		t.Errorf("id taken: %v, want ErrAlreadyExists", err)
	}
	if _, err := table.Get("nope"); !errors.Is(err, atoll.ErrNotExist) {
		t.Errorf("Get: %v, want ErrNotExist", err)
	}
	fail := errors.New("no such program")
	_, err = table.Start(t.Context(), "again", cmd, func(Stdio) (Handle, error) { return nil, fail })
	if err != fail {
		t.Errorf("a failed start returned %v", err)
	}
	if _, err := table.Get("again"); !errors.Is(err, atoll.ErrNotExist) {
		t.Errorf("after a failed start: %v, want ErrNotExist", err)
	}
	mustWait(t, p)
}

func TestTableForgetsTheOldestEnded(t *testing.T) {
	table := newTable(t)
	keep := shellCommand("read x")
	keep.OpenStdin = true
	running := mustStart(t, table, keep)
	var first, last atoll.Process
	for range keepEnded + 5 {
		last = mustStart(t, table, &atoll.Command{Args: []string{"/bin/true"}})
		if first == nil {
			first = last
		}
		mustWait(t, last)
	}
	if n := len(table.List()); n != keepEnded+1 {
		t.Errorf("%d processes are kept, want %d ended and one that runs", n, keepEnded)
	}
	if _, err := table.Get(first.ID()); !errors.Is(err, atoll.ErrNotExist) {
		t.Errorf("the oldest: %v, want ErrNotExist", err)
	}
	for _, p := range []atoll.Process{running, last} {
		if _, err := table.Get(p.ID()); err != nil {
			t.Error(err)
		}
	}
	if table.Running() != 1 {
		t.Errorf("%d run, want 1", table.Running())
	}
}

// printCommand prints n bytes.
func printCommand(n int) *atoll.Command { return shellCommand(fmt.Sprintf("head -c %d /dev/zero", n)) }

// keptOutput says what is kept of the stdout of every process, oldest first.
func keptOutput(table *Table) (kept []int64) {
	for _, st := range table.List() {
		kept = append(kept, st.Stdout.Written-st.Stdout.Oldest)
	}
	return kept
}

func TestEndedOutputIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		prints []int
		want   []int64
	}{
		"all of it":     {[]int{300, 300, 300}, []int64{300, 300, 300}},
		"oldest first":  {[]int{100, 600, 300, 300}, []int64{0, 0, 300, 300}},
		"the last one":  {[]int{100, 200, 5000}, []int64{0, 0, 5000}},
		"after a large": {[]int{5000, 400}, []int64{0, 400}},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t)
			table.EndedOutput = 1000
			for _, n := range test.prints {
				mustWait(t, mustStart(t, table, printCommand(n)))
			}
			if got := keptOutput(table); !slices.Equal(got, test.want) {
				t.Errorf("%d are kept, want %d", got, test.want)
			}
		})
	}
}

func TestForgottenOutputIsAGap(t *testing.T) {
	table := newTable(t)
	table.EndedOutput = 1000
	p := mustStart(t, table, printCommand(700))
	mustWait(t, p)
	mustWait(t, mustStart(t, table, printCommand(700)))
	for name, from := range map[string]int64{"from the start": 0, "from within": 100} {
		var out bytes.Buffer
		var gaps []int64
		err := p.Attach(t.Context(), &atoll.Attachment{Stdout: &out, StdoutFrom: from, Gap: func(s atoll.Stream, from, to int64) {
			gaps = append(gaps, from, to)
		}})
		if err != nil || out.Len() > 0 || !slices.Equal(gaps, []int64{from, 700}) {
			t.Errorf("%s: %v, read %d bytes, gaps %d, want one from %d to 700", name, err, out.Len(), gaps, from)
		}
	}
}

// The table drops output in the order of the ends: that of a long-running process that
// was started first goes last.
func TestOutputGoesInTheOrderOfTheEnds(t *testing.T) {
	table := newTable(t)
	table.EndedOutput = 1000
	cmd := shellCommand("read x; head -c 600 /dev/zero")
	cmd.OpenStdin = true
	long := mustStart(t, table, cmd)
	mustWait(t, mustStart(t, table, printCommand(600)))
	if err := long.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("\n")}); err != nil {
		t.Fatal(err)
	}
	mustWait(t, long)
	if got := keptOutput(table); !slices.Equal(got, []int64{600, 0}) {
		t.Errorf("%d are kept, want that of the one that ended last", got)
	}
	for range keepEnded {
		mustWait(t, mustStart(t, table, &atoll.Command{Args: []string{"/bin/true"}}))
	}
	list := table.List()
	if _, err := table.Get(long.ID()); !errors.Is(err, atoll.ErrNotExist) || len(list) != keepEnded {
		t.Errorf("after %d more: %v, %d processes", keepEnded, err, len(list))
	}
}

func TestOutputThatIsReadIsKept(t *testing.T) {
	table := newTable(t)
	table.EndedOutput = 1000
	entered, release := make(chan struct{}), make(chan struct{})
	var got int
	slow := writerFunc(func(p []byte) (int, error) {
		if got == 0 {
			close(entered)
			<-release
		}
		got += len(p)
		return len(p), nil
	})
	cmd := shellCommand("printf x; read x; head -c 900 /dev/zero")
	cmd.Stdin, cmd.Stdout = strings.NewReader("\n"), slow
	p := mustStart(t, table, cmd)
	<-entered
	eventually(t, "the end of the first", func() bool { return table.List()[0].Exit != nil })
	for range 3 {
		mustWait(t, mustStart(t, table, printCommand(900)))
	}
	close(release)
	mustWait(t, p)
	if got != 901 {
		t.Errorf("a reader who was there got %d bytes, want 901", got)
	}
	mustWait(t, mustStart(t, table, printCommand(900)))
	if kept := keptOutput(table); !slices.Equal(kept, []int64{0, 0, 0, 0, 900}) {
		t.Errorf("once it is read, %d are kept", kept)
	}
}

func TestClose(t *testing.T) {
	table := newTable(t)
	var out safeBuffer
	cmd := shellCommand("echo hello; sleep 60")
	cmd.Stdout = &out
	p := mustStart(t, table, cmd)
	eventually(t, "hello", func() bool { return out.String() == "hello\n" })
	table.Close()
	table.Close()
	if exit := mustWait(t, p); exit.Signal != atoll.SIGKILL {
		t.Errorf("exit %v, want SIGKILL", exit)
	}
	if _, err := table.Start(t.Context(), "", cmd, startHost(cmd.Args, false)); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Start after Close: %v, want ErrStopped", err)
	}
	var again bytes.Buffer
	if err := p.Attach(t.Context(), &atoll.Attachment{Stdout: &again}); err != nil || again.String() != "hello\n" {
		t.Errorf("Attach after Close: %v, %q", err, &again)
	}
}

func TestStopGivesGrace(t *testing.T) {
	stop := func(script string, grace time.Duration) atoll.Exit {
		t.Helper()
		table := newTable(t)
		p := mustStart(t, table, shellCommand(script))
		eventually(t, "it is ready", func() bool { return table.List()[0].Stdout.Written > 0 })
		if err := table.Stop(t.Context(), grace); err != nil {
			t.Fatal(err)
		}
		return mustWait(t, p)
	}
	// Stop returns as soon as the process has ended.
	if exit := stop("trap 'exit 0' TERM; echo; while :; do sleep 0.01; done", testenv.Scale(time.Minute)); exit.Code != 0 {
		t.Errorf("polite: %v", exit)
	}
	if exit := stop("trap '' TERM; echo; while :; do sleep 0.01; done", 300*time.Millisecond); exit.Signal != atoll.SIGKILL {
		t.Errorf("stubborn: %v", exit)
	}
}

// immortalHandle is a process that its backend lost.
type immortalHandle struct{ gone chan struct{} }

func (i *immortalHandle) PID() int                  { return 0 }
func (i *immortalHandle) Wait() atoll.Exit          { <-i.gone; return atoll.Exit{} }
func (i *immortalHandle) Signal(atoll.Signal) error { return nil }
func (i *immortalHandle) Kill() error               { return errors.New("cannot be reached") }

func TestCloseAbandonsWhatCannotBeKilled(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	table := NewTable()
	h := &immortalHandle{make(chan struct{})}
	p, err := table.Start(t.Context(), "", shellCommand(""), func(Stdio) (Handle, error) { return h, nil })
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() {
		_, err := p.Wait(t.Context())
		waited <- err
	}()
	table.closeWithin(10 * time.Millisecond)
	if err := <-waited; !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Wait: %v, want ErrStopped", err)
	}
	close(h.gone)
	goleak.VerifyNone(t, leaks)
}

func TestManyAtOnce(t *testing.T) {
	table := newTable(t)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			var out bytes.Buffer
			cmd := shellCommand(fmt.Sprintf("echo %d; cat", i))
			cmd.Stdin, cmd.Stdout = strings.NewReader("in"), &out
			p, err := table.Start(t.Context(), "", cmd, startHost(cmd.Args, false))
			if err != nil {
				t.Error(err)
				return
			}
			if exit := mustWait(t, p); !exit.Success() || out.String() != fmt.Sprintf("%d\nin", i) {
				t.Errorf("%d: %v, %q", i, exit, &out)
			}
		})
	}
	all.Wait()
}

func BenchmarkStart(b *testing.B) {
	table := NewTable()
	defer table.Close()
	cmd := &atoll.Command{Args: []string{"/bin/true"}, Stdout: io.Discard, Stderr: &bytes.Buffer{}}
	for b.Loop() {
		p, err := table.Start(b.Context(), "", cmd, startHost(cmd.Args, false))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBare is the baseline for BenchmarkStart.
func BenchmarkBare(b *testing.B) {
	for b.Loop() {
		cmd := exec.Command("/bin/true")
		cmd.Stderr = &bytes.Buffer{}
		cmd.Stdout = &bytes.Buffer{}
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
}
