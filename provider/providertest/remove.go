package providertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

var removePromises = []promise{
	{"a second Remove, also by another handle, does nothing", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		other, err := h.p.Get(h.newContext(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		for _, handle := range []atoll.Sandbox{sb, sb, other} {
			if err := handle.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
		_, err = h.p.Get(h.newContext(t), sb.ID())
		wantKind(t, "Get", err, atoll.ErrNotFound)
		checkNoSandbox(t, h, h.p)
	}},
	{"ten concurrent Removes all succeed", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.startReady(t, sb, scriptCommand("ready"))
		errs := inParallel(10, func(int) error { return sb.Remove(h.newContext(t), atoll.RemoveVolumes()) })
		if err := errors.Join(errs...); err != nil {
			t.Errorf("Remove: %v", err)
		}
		checkNoSandbox(t, h, h.p)
	}},
	{"every method of a removed sandbox returns ErrNotFound", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		ctx := h.newContext(t)
		_, err := sb.Status(ctx)
		wantKind(t, "Status", err, atoll.ErrNotFound)
		wantKind(t, "Start", sb.Start(ctx), atoll.ErrNotFound)
		wantKind(t, "Stop", sb.Stop(ctx, 0), atoll.ErrNotFound)
		_, err = sb.Exec(ctx, programCommand("true"))
		wantKind(t, "Exec", err, atoll.ErrNotFound)
		_, err = sb.Process(ctx, p.ID())
		wantKind(t, "Process", err, atoll.ErrNotFound)
		if sb.ID() == "" {
			t.Error("the id is gone")
		}
		runWithin(t, h.shortLimit(), "Wait, Signal and Attach after Remove", func() {
			exit, err := p.Wait(ctx)
			if err := errors.Join(err, h.checkKilledExit(exit, err)); err != nil {
				wantKind(t, "Wait", err, atoll.ErrNotFound, atoll.ErrStopped)
			}
			wantKind(t, "Signal", p.Signal(ctx, atoll.SIGTERM), atoll.ErrStopped, atoll.ErrNotFound)
			if err := p.Attach(ctx, &atoll.Attachment{Stdout: newScreen()}); err != nil {
				wantKind(t, "Attach", err, atoll.ErrNotFound, atoll.ErrStopped)
			}
		})
		caps := h.p.Info().Caps
		for what, c := range map[string]struct {
			has bool
			err error
		}{
			"Pause":    {caps.Pause, atoll.Pause(ctx, sb)},
			"Resume":   {caps.Pause, atoll.Resume(ctx, sb)},
			"Usage":    {caps.Usage, errOf(atoll.UsageOf(ctx, sb))},
			"Refusals": {caps.Refusals, errOf(atoll.RefusalsOf(ctx, sb))},
			"Snapshot": {caps.Snapshot, errOf(atoll.TakeSnapshot(ctx, sb))},
			"Stat":     {caps.Files, errOf(atoll.Files(sb).Stat(ctx, "/"))},
			"Dial":     {caps.Dial, errOf(atoll.Dial(ctx, sb, 80))},
		} {
			if c.has {
				wantKind(t, what, c.err, atoll.ErrNotFound)
			} else {
				wantKind(t, what, c.err, atoll.ErrUnsupported, atoll.ErrNotFound)
			}
		}
	}},
	{"Remove ends pending Wait and Attach calls", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p := h.startProcess(t, sb, scriptCommand("ready"))
		screens := []*screen{newScreen(), newScreen()}
		done := make(chan []error, 1)
		go func() {
			done <- inParallel(4, func(i int) error {
				if i < 2 {
					return p.Attach(h.newContext(t), &atoll.Attachment{Stdout: screens[i]})
				}
				exit, err := p.Wait(h.newContext(t))
				return errors.Join(err, h.checkKilledExit(exit, err))
			})
		}()
		for _, scr := range screens {
			scr.waitForText(t, h, "ready\n")
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		runWithin(t, h.shortLimit(), "waking up", func() {
			for _, err := range <-done {
				if err != nil {
					wantKind(t, "Wait or Attach", err, atoll.ErrNotFound, atoll.ErrStopped)
				}
			}
		})
	}},
	{"Stop ends pending Wait and Attach calls", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p := h.startProcess(t, sb, scriptCommand("ready"))
		scr := newScreen()
		done := make(chan []error, 1)
		go func() {
			done <- inParallel(2, func(i int) error {
				if i == 0 {
					return p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr})
				}
				exit, err := p.Wait(h.newContext(t))
				return errors.Join(err, h.checkKilledExit(exit, err))
			})
		}()
		scr.waitForText(t, h, "ready\n")
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		runWithin(t, h.shortLimit(), "waking up", func() {
			for _, err := range <-done {
				if err != nil {
					wantKind(t, "Wait or Attach", err, atoll.ErrStopped)
				}
			}
		})
	}},
	{"a process that ended with its sandbox keeps reporting so", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		again := func(kinds ...atoll.Kind) {
			t.Helper()
			runWithin(t, h.shortLimit(), "Wait", func() {
				exit, err := p.Wait(h.newContext(t))
				if err := errors.Join(err, h.checkKilledExit(exit, err)); err != nil {
					wantKind(t, "Wait", err, kinds...)
				}
			})
			wantKind(t, "Signal", p.Signal(h.newContext(t), atoll.SIGTERM), kinds...)
		}
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		again(atoll.ErrStopped)
		if h.p.Info().Caps.Restart {
			if err := sb.Start(h.newContext(t)); err != nil {
				t.Fatalf("Start: %v", err)
			}
			_, err := sb.Process(h.newContext(t), p.ID())
			wantKind(t, "Process from before the restart", err, atoll.ErrNotExist)
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		again(atoll.ErrStopped, atoll.ErrNotFound)
	}},
	{"Stop sends SIGTERM before it kills", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("trap", "TERM")})
		p, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		scr := newScreen()
		done := make(chan error, 1)
		go func() { done <- p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}) }()
		scr.waitForText(t, h, "ready\n")
		begin := time.Now()
		if err := sb.Stop(h.newContext(t), h.longLimit()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if took := time.Since(begin); took > h.shortLimit() {
			t.Errorf("Stop took %v although the process ended on SIGTERM", took)
		}
		<-done
		if scr.readText() != "ready\ncaught\n" {
			t.Errorf("the process printed %q, want it to have caught SIGTERM", scr.readText())
		}
		if st := h.waitForState(t, sb, atoll.StateStopped); st.Exit == nil || st.Exit.Code != 42 {
			t.Errorf("the exit of the main process is %v, want code 42", st.Exit)
		}
	}},
	{"Stop kills a process that ignores SIGTERM after the grace", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.startReady(t, sb, scriptCommand("deaf"))
		begin := time.Now()
		if err := sb.Stop(h.newContext(t), time.Second); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if took := time.Since(begin); took < time.Second-50*time.Millisecond || took > time.Second+h.shortLimit() {
			t.Errorf("Stop took %v, want its grace of 1 s", took)
		}
		h.waitForState(t, sb, atoll.StateStopped)
	}},
	{"Stop with grace 0 kills at once", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("deaf")})
		runWithin(t, h.shortLimit(), "Stop", func() {
			if err := sb.Stop(h.newContext(t), 0); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
		h.waitForState(t, sb, atoll.StateStopped)
	}},
	{"output and exit of the main process can be read after its end", nil, func(t *testing.T, h *harness) {
		for _, tt := range []struct {
			name, cmd string
			end       func(sb atoll.Sandbox, main atoll.Process) error
			state     atoll.State
		}{
			{"by itself", "USR1", func(_ atoll.Sandbox, main atoll.Process) error {
				return main.Signal(h.newContext(t), atoll.SIGUSR1)
			}, atoll.StateFailed},
			{"by Stop", "TERM", func(sb atoll.Sandbox, _ atoll.Process) error { return sb.Stop(h.newContext(t), h.longLimit()) }, atoll.StateStopped},
		} {
			sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("trap", tt.cmd)})
			main := h.waitForOutput(t, sb, "ready\n")
			if err := tt.end(sb, main); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			h.waitForState(t, sb, tt.state)
			h.checkCaughtMain(t, sb)
			if h.p.Info().Caps.Restart {
				if err := sb.Start(h.newContext(t)); err != nil {
					t.Fatalf("Start: %v", err)
				}
				h.waitForOutput(t, sb, "ready\n") // by the new main process alone
			}
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
			_, err := sb.Process(h.newContext(t), atoll.MainProcess)
			wantKind(t, "Process of a removed sandbox", err, atoll.ErrNotFound)
		}
	}},
	{"Stop retains the last output of the main process", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("recite")})
		main := h.waitForOutput(t, sb, "ready\n")
		if err := sb.Stop(h.newContext(t), h.longLimit()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if exit := h.waitExit(t, main); exit.Code != 42 {
			t.Errorf("the exit is %+v, want code 42", exit)
		}
		scr := newScreen()
		if err := main.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}); err != nil {
			t.Fatalf("Attach: %v", err)
		}
		if text := scr.readText(); !strings.HasSuffix(text, "\n300000\n") {
			t.Errorf("the last bytes are %q, want the line 300000", text[max(0, len(text)-20):])
		}
	}},
	{"stdout and stderr of an ended main process can be read", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("both", "out", "err")})
		h.waitForState(t, sb, atoll.StateStopped)
		p, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		stdout, stderr := newScreen(), newScreen()
		err = p.Attach(h.newContext(t), &atoll.Attachment{Stdout: stdout, Stderr: stderr})
		if err != nil || stdout.readText() != "out\n" || stderr.readText() != "err\n" {
			t.Errorf("Attach: %q and %q, %v", stdout.readText(), stderr.readText(), err)
		}
	}},
	{"the last output of an ended main process is retained", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("zeros", 3<<20)})
		h.waitForState(t, sb, atoll.StateStopped)
		p, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if got := h.replayStdout(t, p, 100); got.gaps != 1 || got.gapFrom != 100 || got.n != atoll.DefaultOutputLimit || got.gapTo+got.n != 3<<20 {
			t.Errorf("%d gaps, the last from %d to %d, then %d bytes; want one from 100, and the last %d bytes of 3 MiB",
				got.gaps, got.gapFrom, got.gapTo, got.n, atoll.DefaultOutputLimit)
		}
	}},
	{"Stop of a stopped sandbox, or of one never started, does nothing", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for range 2 {
			if err := sb.Stop(h.newContext(t), -1); err != nil {
				t.Errorf("Stop: %v", err)
			}
			h.waitForState(t, sb, atoll.StateStopped)
		}
		created := h.createSandbox(t, atoll.Spec{NoStart: true})
		if err := created.Stop(h.newContext(t), 0); err != nil {
			t.Errorf("Stop of a created one: %v", err)
		}
	}},
	{"Start of a running sandbox does nothing", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		before := h.getStatus(t, sb)
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Errorf("Start: %v", err)
		}
		checkSameStatus(t, "after Start", h.getStatus(t, sb), before)
		if err := p.Signal(h.newContext(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal: %v; the process should live", err)
		}
	}},
	{"nothing runs in a stopped sandbox", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		_, err := sb.Exec(h.newContext(t), programCommand("true"))
		wantKind(t, "Exec", err, atoll.ErrStopped)
		wantKind(t, "Signal", p.Signal(h.newContext(t), atoll.SIGTERM), atoll.ErrStopped)
		st := h.getStatus(t, sb)
		if st.State != atoll.StateStopped || st.Ready || st.Stopped.Before(st.Started) {
			t.Errorf("status is %+v", st)
		}
		if caps := h.p.Info().Caps; caps.Dial {
			_, err := atoll.Dial(h.newContext(t), sb, 80)
			wantKind(t, "Dial", err, atoll.ErrStopped)
		}
	}},
	{"Start is refused without Caps.Restart and leaves the sandbox stopped", nil, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.Restart {
			t.Skip("the provider can start a stopped sandbox")
		}
		sb := h.plainSandbox(t)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		wantKind(t, "Start", sb.Start(h.newContext(t)), atoll.ErrUnsupported)
		if st := h.getStatus(t, sb); st.State != atoll.StateStopped || st.Ready {
			t.Errorf("the status is %+v", st)
		}
		_, err := sb.Exec(h.newContext(t), programCommand("true"))
		wantKind(t, "Exec", err, atoll.ErrStopped)
	}},
	{"Remove ends processes that are being started", nil, func(t *testing.T, h *harness) {
		for range 5 {
			sb := h.plainSandbox(t)
			done := make(chan []error, 1)
			go func() {
				done <- inParallel(8, func(int) error {
					_, err := sb.Exec(h.newContext(t), scriptCommand("ready"))
					return err
				})
			}()
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
			for _, err := range <-done {
				if err != nil {
					wantKind(t, "Exec during Remove", err, atoll.ErrNotFound, atoll.ErrStopped, atoll.ErrConflict)
				}
			}
		}
		checkNoSandbox(t, h, h.p)
	}},
	{"concurrent Start, Stop and Exec leave a working sandbox", nil, func(t *testing.T, h *harness) {
		if !h.p.Info().Caps.Restart {
			t.Skip("the provider cannot start a stopped sandbox")
		}
		sb := h.plainSandbox(t)
		errs := inParallel(12, func(i int) error {
			switch i % 3 {
			case 0:
				return sb.Start(h.newContext(t))
			case 1:
				return sb.Stop(h.newContext(t), 0)
			}
			_, err := sb.Exec(h.newContext(t), scriptCommand("ready"))
			return err
		})
		for _, err := range errs {
			if err != nil {
				wantKind(t, "a concurrent call", err, atoll.ErrStopped, atoll.ErrConflict)
			}
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if got := h.runForOutput(t, sb, programCommand("echo", "works")); got != "works" {
			t.Errorf("echo printed %q", got)
		}
	}},
	{"Close returns in time, and a second Close does nothing", nil, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.Survives {
			t.Skip("the provider's sandboxes outlive it")
		}
		sb := h.plainSandbox(t)
		h.startReady(t, sb, scriptCommand("family"))
		h.closed = true
		runWithin(t, h.longLimit(), "Close", func() {
			for range 2 {
				if err := h.p.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
		})
		_, err := h.p.Create(h.newContext(t), h.completeSpec(atoll.Spec{}))
		wantKind(t, "Create after Close", err, atoll.ErrUnavailable)
	}},
	{"every call returns when its context has ended", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		ctx, cancel := context.WithCancel(h.newContext(t))
		cancel()
		runWithin(t, h.shortLimit(), "calls with an ended context", func() {
			_, err := p.Wait(ctx)
			wantCtx(t, "Wait", err, context.Canceled)
			wantCtx(t, "Attach", p.Attach(ctx, &atoll.Attachment{Stdout: newScreen()}), context.Canceled)
			_, err = sb.Exec(ctx, programCommand("true"))
			wantCtx(t, "Exec", err, context.Canceled)
		})
		for _, c := range h.quickCalls(sb, p) {
			runWithin(t, h.shortLimit(), c.what+" with an ended context", func() {
				if err := c.do(ctx); err != nil && atoll.KindOf(err) != atoll.ErrUnsupported {
					wantCtx(t, c.what, err, context.Canceled)
				}
			})
		}
		if caps := h.p.Info().Caps; caps.Pause {
			if err := atoll.Resume(h.newContext(t), sb); err != nil {
				t.Errorf("Resume: %v", err)
			}
		}
		h.runForOutput(t, sb, programCommand("echo", "unharmed"))
	}},
	{"Stop and Remove with an ended context do their work or return its error", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.startReady(t, sb, scriptCommand("ready"))
		ctx, cancel := context.WithCancel(h.newContext(t))
		cancel()
		runWithin(t, h.shortLimit(), "Stop with an ended context", func() {
			if err := sb.Stop(ctx, -1); err != nil {
				wantCtx(t, "Stop", err, context.Canceled)
			} else if st := h.getStatus(t, sb); st.State != atoll.StateStopped {
				t.Errorf("Stop succeeded, and the sandbox is %s", st.State)
			}
		})
		runWithin(t, h.shortLimit(), "Remove with an ended context", func() {
			if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
				wantCtx(t, "Remove", err, context.Canceled)
			} else {
				checkNoSandbox(t, h, h.p)
			}
		})
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove, tried again: %v", err)
		}
	}},
	{"a Remove whose context ends removes the sandbox or leaves it running", []need{needFiles}, func(t *testing.T, h *harness) {
		for i := range 12 {
			sb := h.plainSandbox(t)
			file := h.rootFile("precious")
			h.writeFile(t, sb, file, "kept")
			ctx, cancel := context.WithTimeout(h.newContext(t), time.Duration(i)*time.Millisecond)
			if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
				wantCtx(t, "Remove", err, context.DeadlineExceeded)
			}
			cancel()
			h.waitUntil(t, h.shortLimit(), func() error {
				st, err := sb.Status(h.newContext(t))
				if atoll.KindOf(err) == atoll.ErrNotFound {
					return nil
				}
				if err != nil || st.State != atoll.StateRunning {
					return fmt.Errorf("the sandbox is %s (%s), %v; want it running or removed", st.State, st.Reason, err)
				}
				data, err := atoll.ReadFile(h.newContext(t), sb, file)
				if string(data) != "kept" || err != nil { // the removal may be under way
					return fmt.Errorf("the sandbox runs, and its file holds %q, %v", data, err)
				}
				return nil
			})
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove, tried again: %v", err)
			}
		}
	}},
}

// waitForOutput waits until the main process has printed text, checks that it printed nothing else, and
// returns the process.
func (h *harness) waitForOutput(t *testing.T, sb atoll.Sandbox, text string) atoll.Process {
	t.Helper()
	p, err := sb.Process(h.newContext(t), atoll.MainProcess)
	if err != nil {
		t.Fatalf("Process: %v", err)
	}
	ctx, cancel := context.WithCancel(h.newContext(t))
	scr := newScreen()
	done := make(chan error, 1)
	go func() { done <- p.Attach(ctx, &atoll.Attachment{Stdout: scr}) }()
	scr.waitForText(t, h, text)
	cancel()
	wantCtx(t, "Attach", <-done, context.Canceled)
	if scr.readText() != text {
		t.Errorf("the main process printed %q, want %q", scr.readText(), text)
	}
	return p
}

// checkCaughtMain checks output and exit of the main process of a sandbox that no longer runs. The
// process is the script trap after its signal.
func (h *harness) checkCaughtMain(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	p, err := sb.Process(h.newContext(t), atoll.MainProcess)
	if err != nil {
		t.Fatalf("Process of an ended sandbox: %v", err)
	}
	for from, want := range map[int64]string{0: "ready\ncaught\n", 6: "caught\n", atoll.FromNow: ""} {
		scr := newScreen()
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr, StdoutFrom: from}); err != nil || scr.readText() != want {
			t.Errorf("Attach from %d: %q, %v, want %q", from, scr.readText(), err, want)
		}
	}
	if exit := h.waitExit(t, p); exit.Code != 42 {
		t.Errorf("the exit is %+v, want code 42", exit)
	}
	wantKind(t, "Signal", p.Signal(h.newContext(t), atoll.SIGTERM), atoll.ErrStopped)
	all, err := atoll.Processes(h.newContext(t), sb)
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		return
	}
	if err != nil || len(all) != 1 || all[0].ID != atoll.MainProcess || all[0].Exit == nil || all[0].Exit.Code != 42 || all[0].Stdout.Written != 13 {
		t.Errorf("Processes: %+v, %v, want the main process, its exit of 42 and 13 bytes", all, err)
	}
}

// A quickCall is a call that may succeed although its context has ended.
type quickCall struct {
	what string
	do   func(context.Context) error
}

// quickCalls returns calls that change nothing about a sandbox, or pause it.
func (h *harness) quickCalls(sb atoll.Sandbox, p atoll.Process) []quickCall {
	files := atoll.Files(sb)
	return []quickCall{
		{"Status", func(ctx context.Context) error { return errOf(sb.Status(ctx)) }},
		{"Start", sb.Start},
		{"Process", func(ctx context.Context) error { return errOf(sb.Process(ctx, p.ID())) }},
		{"Processes", func(ctx context.Context) error { return errOf(atoll.Processes(ctx, sb)) }},
		{"Signal", func(ctx context.Context) error { return p.Signal(ctx, atoll.SIGCONT) }},
		{"Get", func(ctx context.Context) error { return errOf(h.p.Get(ctx, sb.ID())) }},
		{"List", func(ctx context.Context) error { return errOf(h.p.List(ctx, atoll.Filter{})) }},
		{"Volumes", func(ctx context.Context) error { return errOf(atoll.Volumes(ctx, h.p, "")) }},
		{"Workspaces", func(ctx context.Context) error { return errOf(workspace.List(ctx, h.p, "")) }},
		{"Snapshots", func(ctx context.Context) error { return errOf(atoll.Snapshots(ctx, h.p)) }},
		{"Prepare", func(ctx context.Context) error { return atoll.Prepare(ctx, h.p, h.completeSpec(atoll.Spec{}), nil) }},
		{"List of files", func(ctx context.Context) error { return errOf(files.List(ctx, ".", true)) }},
		{"Stat", func(ctx context.Context) error { return errOf(files.Stat(ctx, "/")) }},
		{"Write", func(ctx context.Context) error { return atoll.WriteFile(ctx, sb, "f", []byte("x"), 0) }},
		{"Usage", func(ctx context.Context) error { return errOf(atoll.UsageOf(ctx, sb)) }},
		{"Dial", func(ctx context.Context) error { return errOf(atoll.Dial(ctx, sb, 9)) }},
		{"Pause", func(ctx context.Context) error { return atoll.Pause(ctx, sb) }},
	}
}

// checkKilledExit returns an error if the process of a stopped or removed sandbox has an exit that does
// not say that it was killed. The exit must not look like a crash of the sandbox.
func (h *harness) checkKilledExit(exit atoll.Exit, err error) error {
	killed := h.killedBy(exit, atoll.SIGKILL) || h.killedBy(exit, atoll.SIGTERM)
	if err != nil || killed && !strings.Contains(exit.Reason, "died") {
		return nil
	}
	return fmt.Errorf("the exit is %+v, want it killed, without a crash as its reason", exit)
}

// errOf returns only the error of a call.
func errOf[T any](_ T, err error) error { return err }
