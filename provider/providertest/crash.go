package providertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// CreateAndWait implements the command of option OtherProcess with p, its stdin and its stdout. It creates the
// sandbox whose spec is on in, writes its id and the first line of its main process to out, and waits
// to be killed. It always returns an error.
func CreateAndWait(p atoll.Provider, in io.Reader, out io.Writer) error {
	var spec atoll.Spec
	if err := json.NewDecoder(in).Decode(&spec); err != nil {
		return err
	}
	ctx := context.Background()
	sb, err := p.Create(ctx, &spec)
	if err != nil {
		return err
	}
	main, err := sb.Process(ctx, atoll.MainProcess)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, sb.ID()+" "); err != nil {
		return err
	}
	err = main.Attach(ctx, &atoll.Attachment{Stdout: out})
	return errors.Join(err, errors.New("the main process ended"))
}

var crashPromises = []promise{
	{"a sandbox keeps running when its creator is killed", []need{needSurvives, needElsewhere}, func(t *testing.T, h *harness) {
		spec := atoll.Spec{Name: "left", Labels: map[string]string{"a": "b"}, Cmd: scriptArgs("trap", "TERM")}
		p, sb, line := h.abandonSandbox(t, spec)
		if line != "ready" {
			t.Errorf("the main process printed %q", line)
		}
		named, err := atoll.Resolve(h.newContext(t), p, "", "left")
		if err != nil || named.ID() != sb.ID() {
			t.Errorf("Resolve: %v, %v", named, err)
		}
		if st := h.getStatus(t, sb); st.State != atoll.StateRunning || !st.Ready || st.Spec.Labels["a"] != "b" {
			t.Errorf("the status is %+v", st)
		}
		h.runForOutput(t, sb, programCommand("echo", "works"))
		main, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if err := main.Signal(h.newContext(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal: %v", err)
		}
		scr := newScreen()
		if err := main.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}); err != nil || scr.readText() != "ready\ncaught\n" {
			t.Errorf("Attach: %q, %v", scr.readText(), err)
		}
		if exit := h.waitExit(t, main); exit.Code != 42 {
			t.Errorf("exit is %+v, want code 42", exit)
		}
	}},
	{"a sandbox whose creator was killed has failed, and starts again with its durable files", []need{needElsewhere}, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.Survives {
			t.Skip("the provider's sandboxes outlive it")
		}
		args := append(scriptArgs("stay", "kept"), h.durableFiles()...)
		p, sb, pid := h.abandonSandbox(t, atoll.Spec{Name: "left", Cmd: args})
		if seesHost(h.p.Info()) {
			other, err := p.Create(h.newContext(t), h.completeSpec(atoll.Spec{}))
			if err != nil {
				t.Fatalf("Create: %v", err)
			}
			h.waitUntilDead(t, other, pid)
			if err := other.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
		h.checkCrashRecovery(t, sb)
	}},
	{"a sandbox that was killed has failed, and starts again with its durable files", []need{needCrash}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: append(scriptArgs("stay", "kept"), h.durableFiles()...)})
		main, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		scr := newScreen()
		done := make(chan error, 1)
		go func() { done <- main.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}) }()
		scr.waitForText(t, h, "\n")
		h.cfg.crash(t, h.p, sb)
		runWithin(t, h.shortLimit(), "Attach", func() {
			if err := <-done; err != nil { // the provider may not have noticed the crash yet
				wantKind(t, "Attach", err, atoll.ErrStopped, atoll.ErrUnavailable)
			}
		})
		h.waitForState(t, sb, atoll.StateFailed)
		if _, err := main.Wait(h.newContext(t)); err != nil {
			wantKind(t, "Wait", err, atoll.ErrStopped)
		}
		h.checkCrashRecovery(t, sb)
	}},
}

// abandonSandbox has another process create a sandbox, kills that process, and opens the sandbox here.
// line is the first line of the main process.
func (h *harness) abandonSandbox(t *testing.T, spec atoll.Spec) (p atoll.Provider, sb atoll.Sandbox, line string) {
	t.Helper()
	open, id, line, kill := h.createElsewhere(t, spec)
	kill()
	p, sb = h.findSandbox(t, open, id)
	return p, sb, line
}

// createElsewhere has another process create a sandbox. It returns a function that opens a provider
// over the same state, the sandbox's id, the first line of its main process, and a function that kills
// the other process. The end of the subtest kills it, too.
func (h *harness) createElsewhere(t *testing.T, spec atoll.Spec) (open func() atoll.Provider, id, line string, kill func()) {
	t.Helper()
	cmd, open := h.cfg.elsewhere(t)
	text, err := json.Marshal(h.completeSpec(spec))
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr, cmd.WaitDelay = strings.NewReader(string(text)), &stderr, h.shortLimit()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(h.longLimit(), func() { cmd.Process.Kill() })
	line, err = bufio.NewReader(out).ReadString('\n')
	timer.Stop()
	h.census.recordProcesses()
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	t.Cleanup(kill)
	id, line, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if err != nil || !ok {
		kill()
		t.Fatalf("the creator printed %q, %v\n%s", id+line, err, &stderr)
	}
	return open, id, line, kill
}

// findSandbox opens a provider and returns its sandbox with the id. The end of the subtest removes
// both.
func (h *harness) findSandbox(t *testing.T, open func() atoll.Provider, id string) (atoll.Provider, atoll.Sandbox) {
	t.Helper()
	p := open()
	var sb atoll.Sandbox
	t.Cleanup(func() { h.removeAndClose(t, p, sb) }) // runs before the cleanups of option OtherProcess
	sb, err := p.Get(h.newContext(t), id)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return p, sb
}

// removeAndClose removes the sandbox, unless it is nil, checks that the provider has nothing left, and
// closes it.
func (h *harness) removeAndClose(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), h.longLimit())
	defer cancel()
	if sb != nil {
		if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	if err := retryFor(h.shortLimit(), func() error { return checkEmpty(ctx, p) }); err != nil {
		t.Errorf("after the subtest: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// durableFiles returns the names of files that must survive a crash.
func (h *harness) durableFiles() []string {
	var files []string
	info := h.p.Info()
	if info.Caps.Volumes || info.Caps.Durable == atoll.DurableCrash {
		files = append(files, "kept")
	}
	if info.Caps.Durable == atoll.DurableCrash && !seesHost(info) {
		files = append(files, "/atoll-test-root") // else it would be the host's root
	}
	return files
}

// checkCrashRecovery checks that the sandbox has failed with a reason, that nothing runs in it, and
// that it starts again with its durable files.
func (h *harness) checkCrashRecovery(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	if st := h.waitForState(t, sb, atoll.StateFailed); st.Ready || st.Reason == "" || st.Started.IsZero() {
		t.Errorf("the status is %+v", st)
	}
	_, err := sb.Exec(h.newContext(t), programCommand("true"))
	wantKind(t, "Exec", err, atoll.ErrStopped)
	if !h.p.Info().Caps.Restart {
		return
	}
	if err := sb.Start(h.newContext(t)); err != nil {
		t.Fatalf("Start: %v", err)
	}
	if st := h.getStatus(t, sb); st.State != atoll.StateRunning || st.Reason != "" {
		t.Errorf("after Start: %+v", st)
	}
	for _, name := range h.durableFiles() {
		h.waitUntil(t, h.shortLimit(), func() error { // the main process adds a line at each start
			if res := h.runCommand(t, sb, programCommand("cat", name)); string(res.Stdout) != "kept\nkept\n" {
				return fmt.Errorf("%s holds %q (%v), want two lines", name, res.Stdout, res.Exit)
			}
			return nil
		})
	}
}
