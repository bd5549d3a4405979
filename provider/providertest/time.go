package providertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// quietTime is the time that the suite watches for something that must not happen.
const quietTime = 200 * time.Millisecond

var timePromises = []promise{
	{"the context of Exec bounds the start, not the process", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		ctx, cancel := context.WithCancel(h.newContext(t))
		scr := newScreen()
		cmd := scriptCommand("drip")
		cmd.Stdout = scr
		p, err := sb.Exec(ctx, cmd)
		if err != nil {
			t.Fatalf("Exec: %v", err)
		}
		cancel()
		scr.waitForText(t, h, "\n10\n")
		if err := p.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
			t.Errorf("Signal: %v", err)
		}
	}},
	{"Exec with an ended context starts nothing", nil, func(t *testing.T, h *harness) {
		sb := h.ownSandbox(t)
		ctx, cancel := context.WithCancel(h.newContext(t))
		cancel()
		_, err := sb.Exec(ctx, scriptCommand("ready"))
		wantCtx(t, "Exec", err, context.Canceled)
		if all, err := atoll.Processes(h.newContext(t), sb); err == nil && len(all) != 0 {
			t.Errorf("%d processes run", len(all))
		}
	}},
	{"Wait with an ended context returns and leaves the process running", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		ctx, cancel := context.WithTimeout(h.newContext(t), quietTime)
		defer cancel()
		runWithin(t, h.shortLimit(), "Wait with an ended context", func() {
			_, err := p.Wait(ctx)
			wantCtx(t, "Wait", err, context.DeadlineExceeded)
		})
		if err := p.Signal(h.newContext(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal: %v; the process should live", err)
		}
		if exit := h.waitExit(t, p); !h.killedBy(exit, atoll.SIGTERM) {
			t.Errorf("exit is %v", exit)
		}
	}},
	{"many callers may wait, and Wait after the end returns at once", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		exits := make([]atoll.Exit, 8)
		done := make(chan []error, 1)
		go func() {
			done <- inParallel(len(exits), func(i int) (err error) {
				q, err := sb.Process(h.newContext(t), p.ID())
				if err == nil {
					exits[i], err = q.Wait(h.newContext(t))
				}
				return err
			})
		}()
		if err := p.Signal(h.newContext(t), atoll.SIGUSR1); err != nil {
			t.Errorf("Signal: %v", err)
		}
		if err := errors.Join(<-done...); err != nil {
			t.Errorf("Wait: %v", err)
		}
		for i := range 3 {
			if exit := h.waitExit(t, p); exit != exits[0] {
				t.Errorf("Wait number %d after the end: %+v, was %+v", i, exit, exits[0])
			}
		}
		for _, exit := range exits {
			if exit != exits[0] || !h.killedBy(exit, atoll.SIGUSR1) {
				t.Errorf("one Wait returned %+v, another %+v", exit, exits[0])
			}
		}
	}},
	{"Signal after the end is ErrStopped", nil, func(t *testing.T, h *harness) {
		p := h.startProcess(t, h.plainSandbox(t), programCommand("true"))
		h.waitExit(t, p)
		for _, sig := range []atoll.Signal{atoll.SIGTERM, atoll.SIGKILL} {
			wantKind(t, "Signal", p.Signal(h.newContext(t), sig), atoll.ErrStopped)
		}
	}},
	{"a signal arrives and can be caught", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for name, sig := range map[string]atoll.Signal{"USR1": atoll.SIGUSR1, "TERM": atoll.SIGTERM, "HUP": atoll.SIGHUP} {
			p, scr := h.startReady(t, sb, scriptCommand("trap", name))
			if err := p.Signal(h.newContext(t), sig); err != nil {
				t.Errorf("Signal %v: %v", sig, err)
			}
			if exit := h.waitExit(t, p); exit.Code != 42 || exit.Signal != 0 || scr.readText() != "ready\ncaught\n" {
				t.Errorf("SIG%s: exit %+v, output %q; want it caught", name, exit, scr.readText())
			}
		}
	}},
	{"Timeout kills with code 124", nil, func(t *testing.T, h *harness) {
		cmd := scriptCommand("deaf")
		cmd.Timeout = atoll.Duration(quietTime)
		begin := time.Now()
		exit := h.waitExit(t, h.startProcess(t, h.plainSandbox(t), cmd))
		if exit.Code != atoll.ExitTimedOut || !exit.TimedOut {
			t.Errorf("exit is %+v, want code 124 and TimedOut", exit)
		}
		if took := time.Since(begin); took < quietTime || took > h.shortLimit() {
			t.Errorf("the process took %v", took)
		}
	}},
	{"Timeout does not affect a process that ends in time", nil, func(t *testing.T, h *harness) {
		cmd := scriptCommand("exit", 3)
		cmd.Timeout = atoll.Duration(h.longLimit())
		if exit := h.waitExit(t, h.startProcess(t, h.plainSandbox(t), cmd)); exit.Code != 3 || exit.TimedOut {
			t.Errorf("exit is %+v, want code 3", exit)
		}
	}},
	{"Timeout applies when nobody waits", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		cmd := scriptCommand("ready")
		cmd.Timeout = atoll.Duration(quietTime)
		p := h.startProcess(t, sb, cmd)
		h.waitUntil(t, h.shortLimit(), func() error {
			err := p.Signal(h.newContext(t), atoll.SIGCONT)
			if atoll.KindOf(err) == atoll.ErrStopped {
				return nil
			}
			return errors.Join(errors.New("the process still runs"), err)
		})
	}},
	{"Duration is the time from start to exit", nil, func(t *testing.T, h *harness) {
		exit := h.waitExit(t, h.startProcess(t, h.plainSandbox(t), programCommand("sleep", "0.3")))
		if d := time.Duration(exit.Duration); d < 250*time.Millisecond || d > h.shortLimit() {
			t.Errorf("sleep 0.3 took %v by its Exit", d)
		}
	}},
	{"Run kills when its context ends, and returns its error", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		ctx, cancel := context.WithCancel(h.newContext(t))
		scr := newScreen()
		cmd := scriptCommand("family")
		cmd.Stdout = scr
		done := make(chan error, 1)
		go func() { done <- atoll.Run(ctx, sb, cmd) }()
		scr.waitForText(t, h, "\n")
		cancel()
		wantCtx(t, "Run", <-done, context.Canceled)
		h.waitUntilDead(t, sb, scr.readText())
	}},
	{"Output returns a non-zero exit as an ExitError with the end of stderr", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		out, err := atoll.Output(h.newContext(t), sb, programCommand("cat", "/no/such/file"))
		var exit *atoll.ExitError
		if !errors.As(err, &exit) || exit.Exit.Code == 0 || len(exit.Stderr) == 0 || len(out) != 0 {
			t.Errorf("cat of no file: stdout %q, error %v", out, err)
		}
	}},
}
