package providertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var treePromises = []promise{
	{"SIGKILL goes to all descendants", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, scr := h.startReady(t, sb, scriptCommand("family"))
		h.checkAlive(t, sb, scr.readText())
		if err := p.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
			t.Errorf("Signal: %v", err)
		}
		if exit := h.waitExit(t, p); !h.killedBy(exit, atoll.SIGKILL) {
			t.Errorf("exit is %+v, want code 137", exit)
		}
		h.waitUntilDead(t, sb, scr.readText())
	}},
	{"SIGKILL ends a process in the middle of an exec", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for range 20 {
			p, _ := h.startReady(t, sb, scriptCommand("renew"))
			h.killProcess(t, p)
		}
	}},
	{"another signal goes to the process alone", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, scr := h.startReady(t, sb, scriptCommand("family"))
		if err := p.Signal(h.newContext(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal: %v", err)
		}
		h.waitExit(t, p)
		h.checkAlive(t, sb, scr.readText())
	}},
	{"a time limit kills all descendants, and Wait returns in time", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		cmd := scriptCommand("family")
		limit := min(max(time.Second, h.shortLimit()/10), 10*time.Second) // in which the command starts its descendants
		cmd.Timeout = atoll.Duration(limit)
		begin := time.Now()
		p, scr := h.startReady(t, sb, cmd)
		if exit := h.waitExit(t, p); !exit.TimedOut || exit.Code != atoll.ExitTimedOut {
			t.Errorf("exit is %+v, want it timed out", exit)
		}
		if took := time.Since(begin); took > limit+h.shortLimit() {
			t.Errorf("Wait took %v", took)
		}
		h.waitUntilDead(t, sb, scr.readText())
	}},
	{"a child that holds the output open does not delay Wait", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		begin := time.Now()
		p, scr := h.startReady(t, sb, scriptCommand("orphan"))
		if exit := h.waitExit(t, p); exit.Code != 0 {
			t.Errorf("exit is %+v, want code 0", exit)
		}
		if took := time.Since(begin); took > atoll.DrainTimeout+h.shortLimit() {
			t.Errorf("Wait took %v", took)
		}
		h.checkAlive(t, sb, scr.readText())
	}},
	{"a child that holds the output open does not delay Attach", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p := h.startProcess(t, sb, scriptCommand("orphan"))
		scr := newScreen()
		runWithin(t, atoll.DrainTimeout+h.shortLimit(), "Attach", func() {
			if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: scr}); err != nil {
				t.Errorf("Attach: %v", err)
			}
		})
		h.checkAlive(t, sb, scr.readText())
	}},
	{"Stop ends every process, orphans too", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, scr := h.startReady(t, sb, scriptCommand("family"))
		_, orphan := h.startReady(t, sb, scriptCommand("orphan"))
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		runWithin(t, h.shortLimit(), "Wait after Stop", func() {
			if _, err := p.Wait(h.newContext(t)); err != nil {
				wantKind(t, "Wait", err, atoll.ErrStopped)
			}
		})
		if h.p.Info().Isolation != atoll.IsolationNone || !h.p.Info().Caps.Restart {
			return // the sandbox has its own PIDs, or cannot start again
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.waitUntilDead(t, sb, scr.readText())
		h.waitUntilDead(t, sb, orphan.readText())
	}},
	{"Remove ends every process", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		_, family := h.startReady(t, sb, scriptCommand("family"))
		_, orphan := h.startReady(t, sb, scriptCommand("orphan"))
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if h.p.Info().Isolation != atoll.IsolationNone {
			return // the PIDs belonged to another namespace
		}
		other := h.plainSandbox(t)
		h.waitUntilDead(t, other, family.readText())
		h.waitUntilDead(t, other, orphan.readText())
	}},
	{"orphans are reaped", []need{needIsolation}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		p, scr := h.startReady(t, sb, scriptCommand("family"))
		if err := p.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
			t.Errorf("Signal: %v", err)
		}
		h.waitExit(t, p)
		status := "/proc/" + strings.TrimSpace(scr.readText()) + "/status"
		h.waitUntil(t, h.shortLimit(), func() error {
			if res := h.runCommand(t, sb, programCommand("cat", status)); res.Success() {
				return fmt.Errorf("the orphan still exists: %s", res.Stdout)
			}
			return nil
		})
	}},
}

// checkAlive checks that the process with the printed pid lives in sb.
func (h *harness) checkAlive(t *testing.T, sb atoll.Sandbox, pid string) {
	t.Helper()
	if h.runForCode(t, sb, scriptCommand("alive", strings.TrimSpace(pid))) != 0 {
		t.Errorf("process %q does not live", pid)
	}
}

// waitUntilDead waits until sb has no process with the printed pid.
func (h *harness) waitUntilDead(t *testing.T, sb atoll.Sandbox, pid string) {
	t.Helper()
	h.waitUntil(t, h.shortLimit(), func() error {
		if h.runForCode(t, sb, scriptCommand("alive", strings.TrimSpace(pid))) == 0 {
			return fmt.Errorf("process %q still lives", pid)
		}
		return nil
	})
}
