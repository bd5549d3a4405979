package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var outputPromises = []promise{
	{"a late Attach reads from the first byte", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p := h.startProcess(t, sb, scriptCommand("both", "out", "err"))
		h.waitExit(t, p)
		for range 2 {
			stdout, stderr := newScreen(), newScreen()
			if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: stdout, Stderr: stderr}); err != nil {
				t.Errorf("Attach: %v", err)
			}
			if stdout.readText() != "out\n" || stderr.readText() != "err\n" {
				t.Errorf("stdout %q, stderr %q", stdout.readText(), stderr.readText())
			}
		}
	}},
	{"Attach starts at any offset, or from now", nil, func(t *testing.T, h *harness) {
		p := h.startProcess(t, h.plainSandbox(t), scriptCommand("lines", 5))
		h.waitExit(t, p)
		for from, want := range map[int64]string{0: "1\n2\n3\n4\n5\n", 4: "3\n4\n5\n", 10: "", atoll.FromNow: ""} {
			scr := newScreen()
			a := &atoll.Attachment{Stdout: scr, StdoutFrom: from}
			if err := p.Attach(h.newContext(t), a); err != nil || scr.readText() != want {
				t.Errorf("from %d: %q, %v; want %q", from, scr.readText(), err, want)
			}
		}
	}},
	{"FromNow skips earlier output and delivers later output", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p := h.startProcess(t, sb, &atoll.Command{Args: []string{"cat"}, OpenStdin: true})
		h.typeText(t, p, "before", "before")
		scr := newScreen()
		r, w := newPipe(t)
		done := make(chan error, 1)
		go func() {
			done <- p.Attach(h.newContext(t), &atoll.Attachment{Stdin: r, Stdout: scr, StdoutFrom: atoll.FromNow})
		}()
		io.WriteString(w, "after")
		scr.waitForText(t, h, "after")
		w.Close()
		if err := <-done; err != nil {
			t.Errorf("Attach: %v", err)
		}
		if scr.readText() != "after" {
			t.Errorf("got %q, want only the later output", scr.readText())
		}
	}},
	{"NoFollow delivers the output so far and returns", nil, func(t *testing.T, h *harness) {
		p, _ := h.startReady(t, h.plainSandbox(t), scriptCommand("ready"))
		scr := newScreen()
		runWithin(t, h.shortLimit(), "Attach with NoFollow", func() {
			if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr, NoFollow: true}); err != nil {
				t.Errorf("Attach: %v", err)
			}
		})
		if scr.readText() != "ready\n" {
			t.Errorf("got %q", scr.readText())
		}
	}},
	{"many attachments at once each get everything", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p := h.startProcess(t, sb, &atoll.Command{Args: []string{"cat"}, OpenStdin: true})
		data := patternBytes(700 << 10)
		out := make([]bytes.Buffer, 8)
		done := make(chan []error, 1)
		go func() {
			done <- inParallel(len(out), func(i int) error {
				q, err := sb.Process(h.newContext(t), p.ID())
				if err != nil {
					return err
				}
				return q.Attach(h.newContext(t), &atoll.Attachment{Stdout: &out[i]})
			})
		}()
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdin: bytes.NewReader(data), Stdout: io.Discard}); err != nil {
			t.Errorf("Attach with stdin: %v", err)
		}
		if err := errors.Join(<-done...); err != nil {
			t.Errorf("Attach: %v", err)
		}
		for i := range out {
			if d := describeDiff(out[i].Bytes(), data); d != "" {
				t.Errorf("reader %d got %s", i, d)
			}
		}
	}},
	{"an attachment replaces an earlier one of its name, and no other", nil, func(t *testing.T, h *harness) {
		p := h.startProcess(t, h.plainSandbox(t), &atoll.Command{Args: []string{"cat"}, OpenStdin: true})
		h.typeText(t, p, "one ", "one ")
		ends := map[string]chan error{}
		attach := func(key, name string) *screen {
			scr, end := newScreen(), make(chan error, 1)
			ends[key] = end
			go func() { end <- p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr, Name: name}) }()
			scr.waitForText(t, h, "one ")
			return scr
		}
		attach("first", "a")
		attach("other", "b")
		attach("second", "a")
		runWithin(t, h.shortLimit(), "the first Attach", func() {
			if err := <-ends["first"]; !errors.Is(err, atoll.ErrConflict) {
				t.Errorf("the first attachment ends with %v, want ErrConflict", err)
			}
		})
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdin: strings.NewReader("end"), Stdout: io.Discard}); err != nil {
			t.Errorf("Attach of stdin: %v", err)
		}
		for _, key := range []string{"other", "second"} {
			if err := <-ends[key]; err != nil {
				t.Errorf("the %s attachment ends with %v", key, err)
			}
		}
		long := &atoll.Attachment{Stdout: io.Discard, Name: strings.Repeat("n", atoll.MaxAttachmentName+1)}
		if err := p.Attach(h.newContext(t), long); !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("Attach with too long a name: %v, want ErrInvalid", err)
		}
	}},
	{"stdin can be attached later and repeatedly, and its end closes it", nil, func(t *testing.T, h *harness) {
		p := h.startProcess(t, h.plainSandbox(t), &atoll.Command{Args: []string{"cat"}, OpenStdin: true})
		h.typeText(t, p, "one ", "one ")
		h.typeText(t, p, "two ", "one two ")
		scr := newScreen()
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdin: strings.NewReader("end"), Stdout: scr}); err != nil {
			t.Errorf("Attach: %v", err)
		}
		if scr.readText() != "one two end" {
			t.Errorf("cat printed %q", scr.readText())
		}
		if exit := h.waitExit(t, p); exit.Code != 0 {
			t.Errorf("exit is %v", exit)
		}
	}},
	{"an Attach of stdin alone returns when its input was delivered or the process has ended", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		cat := programCommand("cat")
		cat.OpenStdin = true
		p := h.startProcess(t, sb, cat)
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdin: strings.NewReader("typed")}); err != nil {
			t.Errorf("Attach: %v", err)
		}
		scr := newScreen()
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}); err != nil || scr.readText() != "typed" {
			t.Errorf("cat printed %q, %v; want what was typed", scr.readText(), err)
		}
		idle, _ := h.startReady(t, sb, scriptCommand("ready"))
		r, _ := newPipe(t)
		done := make(chan error, 1)
		go func() { done <- idle.Attach(h.newContext(t), &atoll.Attachment{Stdin: r}) }()
		h.killProcess(t, idle)
		runWithin(t, h.shortLimit(), "Attach to a process that has ended", func() {
			if err := <-done; err != nil && atoll.KindOf(err) != atoll.ErrStopped { // the process may have ended before Attach
				t.Errorf("Attach: %v", err)
			}
		})
	}},
	{"an Attach whose context ends detaches and leaves the process running", nil, func(t *testing.T, h *harness) {
		p, _ := h.startReady(t, h.plainSandbox(t), scriptCommand("ready"))
		ctx, cancel := context.WithCancel(h.newContext(t))
		scr := newScreen()
		done := make(chan error, 1)
		go func() { done <- p.Attach(ctx, &atoll.Attachment{Stdout: scr}) }()
		scr.waitForText(t, h, "ready\n")
		cancel()
		wantCtx(t, "Attach", <-done, context.Canceled)
		if err := p.Signal(h.newContext(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal: %v; the process should live", err)
		}
		h.waitExit(t, p)
	}},
	{"8 MiB of unread output block nothing", nil, func(t *testing.T, h *harness) {
		p := h.startProcess(t, h.plainSandbox(t), scriptCommand("zeros", 8<<20))
		if exit := h.waitExit(t, p); exit.Code != 0 {
			t.Errorf("exit is %v", exit)
		}
		got := h.replayStdout(t, p, 0)
		if got.gapTo == 0 || got.gapTo+got.n != 8<<20 {
			t.Errorf("%d bytes were dropped and %d read, want 8 MiB in all", got.gapTo, got.n)
		}
		if got.n != atoll.DefaultOutputLimit {
			t.Errorf("%d bytes were retained, want the last %d", got.n, atoll.DefaultOutputLimit)
		}
	}},
	{"Attach reports dropped output before it delivers the rest", nil, func(t *testing.T, h *harness) {
		sb := h.ownSandbox(t)
		cmd := scriptCommand("zeros", 1<<20)
		cmd.OutputLimit = 64 << 10
		p := h.startProcess(t, sb, cmd)
		h.waitExit(t, p)
		got := h.replayStdout(t, p, 100)
		if got.gaps != 1 || got.gapFrom != 100 || got.gapTo+got.n != 1<<20 {
			t.Errorf("%d gaps, the last from %d to %d, then %d bytes; want one from 100, and 1 MiB in all", got.gaps, got.gapFrom, got.gapTo, got.n)
		}
		if got.n != 64<<10 {
			t.Errorf("%d bytes were retained, want 64 KiB", got.n)
		}
		if again := h.replayStdout(t, p, got.gapTo); again.gaps != 0 || again.n != got.n {
			t.Errorf("from the oldest retained byte: %d gaps and %d bytes, want none and %d", again.gaps, again.n, got.n)
		}
		if all, err := atoll.Processes(h.newContext(t), sb); err == nil {
			if s := all[0].Stdout; s.Written != 1<<20 || s.Oldest != got.gapTo {
				t.Errorf("Processes returned %+v, want 1 MiB written and retained from %d", s, got.gapTo)
			}
		}
	}},
	{"a slow attached reader slows the process down and misses nothing", nil, func(t *testing.T, h *harness) {
		const size = 64 << 20 // more than all buffers on the way
		w := &gatedWriter{open: make(chan struct{})}
		cmd := scriptCommand("zeros", size)
		cmd.Stdout = w
		p := h.startProcess(t, h.plainSandbox(t), cmd)
		ctx, cancel := context.WithTimeout(h.newContext(t), 2*quietTime)
		defer cancel()
		_, err := p.Wait(ctx)
		wantCtx(t, "Wait while the writer blocks", err, context.DeadlineExceeded)
		close(w.open)
		h.waitExit(t, p)
		if w.n != size {
			t.Errorf("the writer got %d bytes, want %d", w.n, size)
		}
	}},
	{"stderr does not block a reader of stdout alone", nil, func(t *testing.T, h *harness) {
		scr := newScreen()
		cmd := scriptCommand("both", "out", strings.Repeat("e", 100<<10))
		cmd.Stdout = scr
		h.waitExit(t, h.startProcess(t, h.plainSandbox(t), cmd))
		if scr.readText() != "out\n" {
			t.Errorf("stdout is %q", scr.readText())
		}
	}},
	{"Capture keeps the beginning and reports truncation", nil, func(t *testing.T, h *harness) {
		res, err := atoll.Capture(h.newContext(t), h.plainSandbox(t), scriptCommand("lines", 1000), 10)
		if err != nil || string(res.Stdout) != "1\n2\n3\n4\n5\n" || !res.StdoutTruncated || res.StderrTruncated {
			t.Errorf("Capture = %+v, %v", res, err)
		}
	}},
	{"Wait returns when the output has been delivered", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for i := range 20 {
			w := &slowWriter{}
			cmd := scriptCommand("both", fmt.Sprint(i), "")
			cmd.Stdout = w
			h.waitExit(t, h.startProcess(t, sb, cmd))
			if got := w.readText(); got != fmt.Sprintf("%d\n", i) {
				t.Fatalf("run %d: %q was delivered when Wait returned", i, got)
			}
		}
	}},
}

// typeText attaches, types text, and detaches when the output contains want.
func (h *harness) typeText(t *testing.T, p atoll.Process, text, want string) {
	t.Helper()
	ctx, cancel := context.WithCancel(h.newContext(t))
	r, w := newPipe(t)
	scr := newScreen()
	done := make(chan error, 1)
	go func() { done <- p.Attach(ctx, &atoll.Attachment{Stdin: r, Stdout: scr}) }()
	io.WriteString(w, text)
	scr.waitForText(t, h, want)
	cancel()
	wantCtx(t, "Attach", <-done, context.Canceled)
}

// A replayedOutput records the stdout that a late attachment gets.
type replayedOutput struct {
	n, gapFrom, gapTo int64 // bytes after the last gap, and that gap
	gaps              int
}

func (r *replayedOutput) Write(p []byte) (int, error) { r.n += int64(len(p)); return len(p), nil }

// replayStdout attaches to stdout at the offset and reads it to its end.
func (h *harness) replayStdout(t *testing.T, p atoll.Process, from int64) *replayedOutput {
	t.Helper()
	got := &replayedOutput{}
	err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: got, StdoutFrom: from, Gap: func(s atoll.Stream, from, to int64) {
		if s != atoll.Stdout || got.n > 0 {
			t.Errorf("gap %d..%d of %s after %d bytes of stdout", from, to, s, got.n)
		}
		got.gaps++
		got.gapFrom, got.gapTo = from, to
	}})
	if err != nil {
		t.Errorf("Attach: %v", err)
	}
	return got
}

// A gatedWriter is a writer that blocks until open is closed.
type gatedWriter struct {
	open chan struct{}
	n    int
}

func (v *gatedWriter) Write(p []byte) (int, error) {
	<-v.open
	v.n += len(p)
	return len(p), nil
}

// A slowWriter is a writer that sleeps in each Write.
type slowWriter struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (s *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

// readText returns the written text.
func (s *slowWriter) readText() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}
