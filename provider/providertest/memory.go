package providertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var memory = []promise{
	{"a second provider value finds the sandbox with all that is known of it", []need{needSurvives}, func(t *testing.T, h *harness) {
		sb := h.create(t, fullSpec())
		before := h.status(t, sb)
		h.restart(t)
		got, err := h.p2().Get(h.ctx(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		sameStatus(t, "after a restart", h.status(t, got), before)
		all, err := h.p2().List(h.ctx(t), atoll.Filter{})
		if err != nil || len(all) != 1 {
			t.Fatalf("List: %d, %v; want 1", len(all), err)
		}
		sameStatus(t, "List after a restart", all[0], before)
		named, err := atoll.Resolve(h.ctx(t), h.p2(), "project-1", "full")
		if err != nil || named.ID() != sb.ID() {
			t.Errorf("Resolve: %v, %v", named, err)
		}
	}},
	{"a sandbox found after a restart has the same abilities", []need{needSurvives}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		if h.p.Info().Caps.Files {
			h.write(t, sb, "f", "before")
		}
		h.restart(t)
		again, err := h.p2().Get(h.ctx(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		if got := h.output(t, again, program("echo", "hello")); got != "hello" {
			t.Errorf("echo printed %q", got)
		}
		if h.p.Info().Caps.Files {
			h.holds(t, again, "f", "before")
		}
		abilities(t, h, again)
		if err := again.Stop(h.ctx(t), 0); err != nil {
			t.Errorf("Stop: %v", err)
		}
		if err := again.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
		nothingLeft(t, h, h.p2())
	}},
	{"a process lives through a restart, and its output can be read from the first byte", []need{needSurvives, needReattach}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		p, _ := h.started(t, sb, word("trap", "TERM"))
		ended := h.start(t, sb, word("both", "out", "err"))
		h.wait(t, ended)
		h.restart(t)
		again, err := h.p2().Get(h.ctx(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		q, err := again.Process(h.ctx(t), p.ID())
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		scr := newScreen()
		done := make(chan error, 1)
		go func() { done <- q.Attach(h.ctx(t), &atoll.Attachment{Stdout: scr}) }()
		scr.expect(t, h, "ready\n")
		if err := q.Signal(h.ctx(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal: %v", err)
		}
		if exit := h.wait(t, q); exit.Code != 42 {
			t.Errorf("exit is %+v, want code 42", exit)
		}
		if err := <-done; err != nil || scr.text() != "ready\ncaught\n" {
			t.Errorf("Attach: %q, %v", scr.text(), err)
		}
		e, err := again.Process(h.ctx(t), ended.ID())
		if err != nil {
			t.Fatalf("Process of one that had ended: %v", err)
		}
		out := newScreen()
		if err := e.Attach(h.ctx(t), &atoll.Attachment{Stdout: out}); err != nil || out.text() != "out\n" {
			t.Errorf("Attach to one that had ended: %q, %v", out.text(), err)
		}
	}},
	{"what the main process of an ended sandbox printed outlives a restart", []need{needSurvives}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Cmd: wordArgs("trap", "TERM")})
		main := h.printed(t, sb, "ready\n")
		if err := sb.Stop(h.ctx(t), h.long()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if exit := h.wait(t, main); exit.Code != 42 {
			t.Errorf("the exit, by the handle of before, is %+v, want code 42", exit)
		}
		h.restart(t)
		again, err := h.p2().Get(h.ctx(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		h.leftCaught(t, again)
	}},
	{"a process is not found after a restart without Caps.Reattach, and its sandbox works", []need{needSurvives}, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.Reattach {
			t.Skip("the provider has cap reattach")
		}
		sb := h.idle(t)
		p, _ := h.started(t, sb, word("ready"))
		h.restart(t)
		_, err := p.Wait(h.ctx(t))
		wantKind(t, "Wait by the handle of before", err, atoll.ErrStopped, atoll.ErrUnavailable)
		again, err := h.p2().Get(h.ctx(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		_, err = again.Process(h.ctx(t), p.ID())
		wantKind(t, "Process", err, atoll.ErrNotExist)
		h.output(t, again, program("echo", "works"))
	}},
	{"a TTL holds although its maker has gone", []need{needSurvives}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{TTL: atoll.Duration(2 * time.Second)})
		h.restart(t)
		h.poll(t, 2*time.Second+h.short(), func() error {
			_, err := h.p2().Get(h.ctx(t), sb.ID())
			if atoll.KindOf(err) == atoll.ErrNotFound {
				return nil
			}
			return errStill
		})
	}},
	{"a time limit holds although its maker has gone", []need{needSurvives, needReattach}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		cmd := word("ready")
		cmd.Timeout = atoll.Duration(time.Second)
		p := h.start(t, sb, cmd)
		h.restart(t)
		again, err := h.p2().Get(h.ctx(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		q, err := again.Process(h.ctx(t), p.ID())
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if exit := h.wait(t, q); !exit.TimedOut {
			t.Errorf("exit is %+v, want it timed out", exit)
		}
	}},
	{"two provider values see each other's sandboxes", []need{needSurvives}, func(t *testing.T, h *harness) {
		p2 := h.reopen(t)
		a := h.create(t, atoll.Spec{Name: "one"})
		got, err := p2.Get(h.ctx(t), a.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		if out := h.output(t, got, program("echo", "hello")); out != "hello" {
			t.Errorf("echo printed %q", out)
		}
		_, err = p2.Create(h.ctx(t), h.spec(atoll.Spec{Name: "one"}))
		wantKind(t, "Create of the same name", err, atoll.ErrAlreadyExists)
		if err := got.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
		_, err = a.Status(h.ctx(t))
		wantKind(t, "Status by the first", err, atoll.ErrNotFound)
		nothingLeft(t, h, h.p)
	}},
	{"a Watch tells what another provider value does", []need{needSurvives}, func(t *testing.T, h *harness) {
		p2 := h.reopen(t)
		w := h.watch(t, h.ctx(t))
		w.synced(t, h)
		sb, err := p2.Create(h.ctx(t), h.spec(atoll.Spec{Name: "other"}))
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		h.keep(sb.ID())
		if st := w.expect(t, h, sb.ID(), atoll.StateRunning); st.Spec.Name != "other" {
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
			if err := step.do(h.ctx(t)); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
			w.expect(t, h, sb.ID(), step.state)
		}
	}},
	{"Stop and Start keep the files", []need{needRestart}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		want := map[string]string{}
		if h.keepsWork() {
			want["inwork"] = "work"
		}
		if h.keepsRoot() {
			want["/atoll-test-root"] = "root"
		}
		if len(want) == 0 {
			t.Skip("the provider keeps none")
		}
		for name, text := range want {
			if h.code(t, sb, word("store", name, text)) != 0 {
				t.Fatalf("the process could not write %s", name)
			}
		}
		if err := sb.Stop(h.ctx(t), -1); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		for name, text := range want {
			if res := h.capture(t, sb, program("cat", name)); string(res.Stdout) != text+"\n" {
				t.Errorf("%s holds %q (%v), want %q", name, res.Stdout, res.Exit, text)
			}
		}
	}},
	{"a root file system that is not durable is a fresh one after Start", []need{needRestart, needWalls}, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.Durable != atoll.DurableNone {
			t.Skip("the provider keeps it")
		}
		sb, file := h.idle(t), h.rootFile("of-a-life-before")
		if h.code(t, sb, word("store", file, "root")) != 0 {
			t.Fatal("the process could not write")
		}
		if err := sb.Stop(h.ctx(t), -1); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if h.code(t, sb, program("cat", file)) == 0 {
			t.Error("a file of the life before is there")
		}
	}},
	{"the work directory survives a crash of the main process", []need{needVolumes, needRestart}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Cmd: wordArgs("ready")})
		if h.code(t, sb, word("store", "inwork", "work")) != 0 {
			t.Fatal("the process could not write")
		}
		p, err := sb.Process(h.ctx(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if err := p.Signal(h.ctx(t), atoll.SIGKILL); err != nil {
			t.Fatalf("Signal: %v", err)
		}
		h.becomes(t, sb, atoll.StateStopped)
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if got := h.output(t, sb, program("cat", "inwork")); got != "work" {
			t.Errorf("inwork holds %q", got)
		}
	}},
	{"Start after a stop begins a new life", []need{needRestart}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Cmd: wordArgs("ready")})
		before := h.status(t, sb)
		if err := sb.Stop(h.ctx(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		stopped := h.becomes(t, sb, atoll.StateStopped)
		if stopped.Stopped.Before(before.Started) {
			t.Errorf("stopped %v, started %v", stopped.Stopped, before.Started)
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		st := h.status(t, sb)
		if st.State != atoll.StateRunning || st.Exit != nil || st.Reason != "" || st.Started.Before(stopped.Stopped) {
			t.Errorf("after Start: %+v", st)
		}
		if !st.Created.Equal(before.Created) {
			t.Errorf("created %v, was %v", st.Created, before.Created)
		}
		p, err := sb.Process(h.ctx(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if err := p.Signal(h.ctx(t), atoll.SIGCONT); err != nil {
			t.Errorf("Signal: %v; the new main process should run", err)
		}
	}},
	{"a failed sandbox can be started from what survived", []need{needRestart}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Cmd: wordArgs("trap", "USR1")})
		p, err := sb.Process(h.ctx(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		scr := newScreen()
		done := make(chan error, 1)
		go func() { done <- p.Attach(h.ctx(t), &atoll.Attachment{Stdout: scr}) }()
		scr.expect(t, h, "ready\n")
		if err := p.Signal(h.ctx(t), atoll.SIGUSR1); err != nil {
			t.Fatalf("Signal: %v", err)
		}
		<-done
		if st := h.becomes(t, sb, atoll.StateFailed); st.Exit == nil || st.Exit.Code != 42 || !strings.Contains(st.Reason, "42") {
			t.Errorf("exit %v, reason %q; want 42", st.Exit, st.Reason)
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if st := h.status(t, sb); st.State != atoll.StateRunning || st.Exit != nil || st.Reason != "" {
			t.Errorf("after Start: %+v", st)
		}
	}},
}

// keepsWork reports whether the work directory is there again when a sandbox starts
// after Stop.
func (h *harness) keepsWork() bool {
	caps := h.p.Info().Caps
	return caps.Volumes || caps.Durable != atoll.DurableNone
}

// keepsRoot reports whether the root file system is, and is no other's.
func (h *harness) keepsRoot() bool {
	info := h.p.Info()
	return info.Caps.Durable != atoll.DurableNone && info.Isolation != atoll.IsolationNone // else it would be the host's
}

// A watchStep is a change of a sandbox, and the state that it leads to.
type watchStep struct {
	what  string
	do    func(context.Context) error
	state atoll.State
}

// restart closes the provider and opens a second value over its state.
func (h *harness) restart(t *testing.T) {
	t.Helper()
	if h.cfg.reopen == nil {
		t.Fatal("Caps.Survives needs the option Reopen")
	}
	if err := h.p.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	h.closed = true
	h.reopen(t)
}

// p2 is the provider value that was opened last.
func (h *harness) p2() atoll.Provider { return h.opened[len(h.opened)-1] }
