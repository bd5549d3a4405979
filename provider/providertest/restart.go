package providertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var restartPromises = []promise{
	{"a second provider value finds the sandbox with its whole status", []need{needSurvives}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, fullSpec())
		before := h.getStatus(t, sb)
		h.restartProvider(t)
		got, err := h.lastProvider().Get(h.newContext(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		checkSameStatus(t, "after a restart", h.getStatus(t, got), before)
		all, err := h.lastProvider().List(h.newContext(t), atoll.Filter{})
		if err != nil || len(all) != 1 {
			t.Fatalf("List: %d, %v; want 1", len(all), err)
		}
		checkSameStatus(t, "List after a restart", all[0], before)
		named, err := atoll.Resolve(h.newContext(t), h.lastProvider(), "project-1", "full")
		if err != nil || named.ID() != sb.ID() {
			t.Errorf("Resolve: %v, %v", named, err)
		}
	}},
	{"a sandbox found after a restart has the same abilities", []need{needSurvives}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if h.p.Info().Caps.Files {
			h.writeFile(t, sb, "f", "before")
		}
		h.restartProvider(t)
		again, err := h.lastProvider().Get(h.newContext(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		if got := h.runForOutput(t, again, programCommand("echo", "hello")); got != "hello" {
			t.Errorf("echo printed %q", got)
		}
		if h.p.Info().Caps.Files {
			h.checkContent(t, again, "f", "before")
		}
		checkAbilities(t, h, again)
		if err := again.Stop(h.newContext(t), 0); err != nil {
			t.Errorf("Stop: %v", err)
		}
		if err := again.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
		checkNoSandbox(t, h, h.lastProvider())
	}},
	{"a process survives a restart, and its output can be read from the first byte", []need{needSurvives, needReattach}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("trap", "TERM"))
		ended := h.startProcess(t, sb, scriptCommand("both", "out", "err"))
		h.waitExit(t, ended)
		h.restartProvider(t)
		again, err := h.lastProvider().Get(h.newContext(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		q, err := again.Process(h.newContext(t), p.ID())
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		scr := newScreen()
		done := make(chan error, 1)
		go func() { done <- q.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}) }()
		scr.waitForText(t, h, "ready\n")
		if err := q.Signal(h.newContext(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal: %v", err)
		}
		if exit := h.waitExit(t, q); exit.Code != 42 {
			t.Errorf("exit is %+v, want code 42", exit)
		}
		if err := <-done; err != nil || scr.readText() != "ready\ncaught\n" {
			t.Errorf("Attach: %q, %v", scr.readText(), err)
		}
		e, err := again.Process(h.newContext(t), ended.ID())
		if err != nil {
			t.Fatalf("Process of an ended process: %v", err)
		}
		out := newScreen()
		if err := e.Attach(h.newContext(t), &atoll.Attachment{Stdout: out}); err != nil || out.readText() != "out\n" {
			t.Errorf("Attach to an ended process: %q, %v", out.readText(), err)
		}
	}},
	{"output of the main process of a stopped sandbox survives a restart", []need{needSurvives}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("trap", "TERM")})
		main := h.waitForOutput(t, sb, "ready\n")
		if err := sb.Stop(h.newContext(t), h.longLimit()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if exit := h.waitExit(t, main); exit.Code != 42 {
			t.Errorf("the exit, by the old handle, is %+v, want code 42", exit)
		}
		h.restartProvider(t)
		again, err := h.lastProvider().Get(h.newContext(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		h.checkCaughtMain(t, again)
	}},
	{"a restart without Caps.Reattach loses processes, and their sandbox works", []need{needSurvives}, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.Reattach {
			t.Skip("the provider has cap reattach")
		}
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		h.restartProvider(t)
		_, err := p.Wait(h.newContext(t))
		wantKind(t, "Wait by the old handle", err, atoll.ErrStopped, atoll.ErrUnavailable)
		again, err := h.lastProvider().Get(h.newContext(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		_, err = again.Process(h.newContext(t), p.ID())
		wantKind(t, "Process", err, atoll.ErrNotExist)
		h.runForOutput(t, again, programCommand("echo", "works"))
	}},
	{"a TTL applies after its creator is gone", []need{needSurvives}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{TTL: atoll.Duration(2 * time.Second)})
		h.restartProvider(t)
		h.waitUntil(t, 2*time.Second+h.shortLimit(), func() error {
			_, err := h.lastProvider().Get(h.newContext(t), sb.ID())
			if atoll.KindOf(err) == atoll.ErrNotFound {
				return nil
			}
			return errExists
		})
	}},
	{"a time limit applies after its creator is gone", []need{needSurvives, needReattach}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		cmd := scriptCommand("ready")
		cmd.Timeout = atoll.Duration(time.Second)
		p := h.startProcess(t, sb, cmd)
		h.restartProvider(t)
		again, err := h.lastProvider().Get(h.newContext(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		q, err := again.Process(h.newContext(t), p.ID())
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if exit := h.waitExit(t, q); !exit.TimedOut {
			t.Errorf("exit is %+v, want it timed out", exit)
		}
	}},
	{"two provider values see each other's sandboxes", []need{needSurvives}, func(t *testing.T, h *harness) {
		p2 := h.reopenProvider(t)
		a := h.createSandbox(t, atoll.Spec{Name: "one"})
		got, err := p2.Get(h.newContext(t), a.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		if out := h.runForOutput(t, got, programCommand("echo", "hello")); out != "hello" {
			t.Errorf("echo printed %q", out)
		}
		_, err = p2.Create(h.newContext(t), h.completeSpec(atoll.Spec{Name: "one"}))
		wantKind(t, "Create of the same name", err, atoll.ErrAlreadyExists)
		if err := got.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
		_, err = a.Status(h.newContext(t))
		wantKind(t, "Status by the first value", err, atoll.ErrNotFound)
		checkNoSandbox(t, h, h.p)
	}},
	{"a Watch reports changes by another provider value", []need{needSurvives}, func(t *testing.T, h *harness) {
		p2 := h.reopenProvider(t)
		w := h.startWatch(t, h.newContext(t))
		w.waitForSync(t, h)
		sb, err := p2.Create(h.newContext(t), h.completeSpec(atoll.Spec{Name: "other"}))
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		h.removeAtEnd(sb.ID())
		if st := w.waitForState(t, h, sb.ID(), atoll.StateRunning); st.Spec.Name != "other" {
			t.Errorf("the event is of %+v", st)
		}
		steps := []watchStep{{"Stop", func(ctx context.Context) error { return sb.Stop(ctx, 0) }, atoll.StateStopped}}
		if caps := p2.Info().Caps; caps.Restart {
			steps = append(steps, watchStep{"Start", sb.Start, atoll.StateRunning})
			if caps.Pause {
				steps = append(steps,
					watchStep{"Pause", func(ctx context.Context) error { return atoll.Pause(ctx, sb) }, atoll.StatePaused},
					watchStep{"Resume", func(ctx context.Context) error { return atoll.Resume(ctx, sb) }, atoll.StateRunning})
			}
		}
		steps = append(steps, watchStep{"Remove", func(ctx context.Context) error { return sb.Remove(ctx, atoll.RemoveVolumes()) }, atoll.StateRemoved})
		for _, step := range steps {
			if err := step.do(h.newContext(t)); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
			w.waitForState(t, h, sb.ID(), step.state)
		}
	}},
	{"Stop and Start retain the files", []need{needRestart}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		want := map[string]string{}
		if h.keepsWork() {
			want["inwork"] = "work"
		}
		if h.keepsRoot() {
			want["/atoll-test-root"] = "root"
		}
		if len(want) == 0 {
			t.Skip("the provider retains none")
		}
		for name, text := range want {
			if h.runForCode(t, sb, scriptCommand("store", name, text)) != 0 {
				t.Fatalf("the process could not write %s", name)
			}
		}
		if err := sb.Stop(h.newContext(t), -1); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		for name, text := range want {
			if res := h.runCommand(t, sb, programCommand("cat", name)); string(res.Stdout) != text+"\n" {
				t.Errorf("%s holds %q (%v), want %q", name, res.Stdout, res.Exit, text)
			}
		}
	}},
	{"a root file system that is not durable is fresh after Start", []need{needRestart, needIsolation}, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.Durable != atoll.DurableNone {
			t.Skip("the provider retains it")
		}
		sb, file := h.plainSandbox(t), h.rootFile("from-before")
		if h.runForCode(t, sb, scriptCommand("store", file, "root")) != 0 {
			t.Fatal("the process could not write")
		}
		if err := sb.Stop(h.newContext(t), -1); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if h.runForCode(t, sb, programCommand("cat", file)) == 0 {
			t.Error("a file from before the stop exists")
		}
	}},
	{"the work directory survives a crash of the main process", []need{needVolumes, needRestart}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("ready")})
		if h.runForCode(t, sb, scriptCommand("store", "inwork", "work")) != 0 {
			t.Fatal("the process could not write")
		}
		p, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if err := p.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
			t.Fatalf("Signal: %v", err)
		}
		h.waitForState(t, sb, atoll.StateStopped)
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if got := h.runForOutput(t, sb, programCommand("cat", "inwork")); got != "work" {
			t.Errorf("inwork holds %q", got)
		}
	}},
	{"Start after a stop resets the status and runs a new main process", []need{needRestart}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("ready")})
		before := h.getStatus(t, sb)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		stopped := h.waitForState(t, sb, atoll.StateStopped)
		if stopped.Stopped.Before(before.Started) {
			t.Errorf("stopped %v, started %v", stopped.Stopped, before.Started)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		st := h.getStatus(t, sb)
		if st.State != atoll.StateRunning || st.Exit != nil || st.Reason != "" || st.Started.Before(stopped.Stopped) {
			t.Errorf("after Start: %+v", st)
		}
		if !st.Created.Equal(before.Created) {
			t.Errorf("created %v, was %v", st.Created, before.Created)
		}
		p, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if err := p.Signal(h.newContext(t), atoll.SIGCONT); err != nil {
			t.Errorf("Signal: %v; the new main process should run", err)
		}
	}},
	{"a failed sandbox can be started again", []need{needRestart}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("trap", "USR1")})
		p, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		scr := newScreen()
		done := make(chan error, 1)
		go func() { done <- p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}) }()
		scr.waitForText(t, h, "ready\n")
		if err := p.Signal(h.newContext(t), atoll.SIGUSR1); err != nil {
			t.Fatalf("Signal: %v", err)
		}
		<-done
		if st := h.waitForState(t, sb, atoll.StateFailed); st.Exit == nil || st.Exit.Code != 42 || !strings.Contains(st.Reason, "42") {
			t.Errorf("exit %v, reason %q; want 42", st.Exit, st.Reason)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if st := h.getStatus(t, sb); st.State != atoll.StateRunning || st.Exit != nil || st.Reason != "" {
			t.Errorf("after Start: %+v", st)
		}
	}},
}

// keepsWork reports whether the work directory survives Stop and Start.
func (h *harness) keepsWork() bool {
	caps := h.p.Info().Caps
	return caps.Volumes || caps.Durable != atoll.DurableNone
}

// keepsRoot reports whether the sandbox has its own root file system, which survives Stop and Start.
func (h *harness) keepsRoot() bool {
	info := h.p.Info()
	return info.Caps.Durable != atoll.DurableNone && !seesHost(info) // without isolation it is the host's
}

// A watchStep changes a sandbox to a state.
type watchStep struct {
	what  string
	do    func(context.Context) error
	state atoll.State
}

// restartProvider closes the provider and opens a second value over its state.
func (h *harness) restartProvider(t *testing.T) {
	t.Helper()
	if h.cfg.reopen == nil {
		t.Fatal("Caps.Survives needs the option Reopen")
	}
	if err := h.p.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	h.closed = true
	h.reopenProvider(t)
}

// lastProvider returns the provider value that was opened last.
func (h *harness) lastProvider() atoll.Provider { return h.reopened[len(h.reopened)-1] }
