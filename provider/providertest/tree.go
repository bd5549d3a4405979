package providertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var tree = []promise{
	{"SIGKILL goes to all descendants", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		p, scr := h.started(t, sb, word("family"))
		h.lives(t, sb, scr.text())
		if err := p.Signal(h.ctx(t), atoll.SIGKILL); err != nil {
			t.Errorf("Signal: %v", err)
		}
		if exit := h.wait(t, p); !h.killedBy(exit, atoll.SIGKILL) {
			t.Errorf("exit is %+v, want code 137", exit)
		}
		h.dies(t, sb, scr.text())
	}},
	{"another signal goes to the process alone", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		p, scr := h.started(t, sb, word("family"))
		if err := p.Signal(h.ctx(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal: %v", err)
		}
		h.wait(t, p)
		h.lives(t, sb, scr.text())
	}},
	{"a time limit kills all descendants, and Wait returns in time", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		cmd := word("family")
		cmd.Timeout = atoll.Duration(time.Second)
		begin := time.Now()
		p, scr := h.started(t, sb, cmd)
		if exit := h.wait(t, p); !exit.TimedOut || exit.Code != atoll.ExitTimedOut {
			t.Errorf("exit is %+v, want it timed out", exit)
		}
		if took := time.Since(begin); took > time.Second+h.short() {
			t.Errorf("Wait took %v", took)
		}
		h.dies(t, sb, scr.text())
	}},
	{"a child that holds the output does not hold Wait", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		begin := time.Now()
		p, scr := h.started(t, sb, word("orphan"))
		if exit := h.wait(t, p); exit.Code != 0 {
			t.Errorf("exit is %+v, want code 0", exit)
		}
		if took := time.Since(begin); took > atoll.DrainTimeout+h.short() {
			t.Errorf("Wait took %v", took)
		}
		h.lives(t, sb, scr.text())
	}},
	{"a child that holds the output does not hold Attach", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		p := h.start(t, sb, word("orphan"))
		scr := newScreen()
		within(t, atoll.DrainTimeout+h.short(), "Attach", func() {
			if err := p.Attach(h.ctx(t), &atoll.Attachment{Stdout: scr}); err != nil {
				t.Errorf("Attach: %v", err)
			}
		})
		h.lives(t, sb, scr.text())
	}},
	{"Stop ends every process, orphans too", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		p, scr := h.started(t, sb, word("family"))
		_, orphan := h.started(t, sb, word("orphan"))
		if err := sb.Stop(h.ctx(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		within(t, h.short(), "Wait after Stop", func() {
			if _, err := p.Wait(h.ctx(t)); err != nil {
				wantKind(t, "Wait", err, atoll.ErrStopped)
			}
		})
		if h.p.Info().Isolation != atoll.IsolationNone || !h.p.Info().Caps.Restart {
			return // pids of its own, or no way to look
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.dies(t, sb, scr.text())
		h.dies(t, sb, orphan.text())
	}},
	{"Remove ends every process", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		_, family := h.started(t, sb, word("family"))
		_, orphan := h.started(t, sb, word("orphan"))
		if err := sb.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if h.p.Info().Isolation != atoll.IsolationNone {
			return // the pids were those of another world
		}
		other := h.idle(t)
		h.dies(t, other, family.text())
		h.dies(t, other, orphan.text())
	}},
	{"orphans are reaped", []need{needWalls}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		p, scr := h.started(t, sb, word("family"))
		if err := p.Signal(h.ctx(t), atoll.SIGKILL); err != nil {
			t.Errorf("Signal: %v", err)
		}
		h.wait(t, p)
		status := "/proc/" + strings.TrimSpace(scr.text()) + "/status"
		h.poll(t, h.short(), func() error {
			if res := h.capture(t, sb, program("cat", status)); res.Success() {
				return fmt.Errorf("it is still there: %s", res.Stdout)
			}
			return nil
		})
	}},
}

// lives checks that the process whose pid was printed lives in sb.
func (h *harness) lives(t *testing.T, sb atoll.Sandbox, pid string) {
	t.Helper()
	if h.code(t, sb, word("alive", strings.TrimSpace(pid))) != 0 {
		t.Errorf("process %q does not live", pid)
	}
}

// dies waits until the process whose pid was printed is gone from sb.
func (h *harness) dies(t *testing.T, sb atoll.Sandbox, pid string) {
	t.Helper()
	h.poll(t, h.short(), func() error {
		if h.code(t, sb, word("alive", strings.TrimSpace(pid))) == 0 {
			return fmt.Errorf("process %q still lives", pid)
		}
		return nil
	})
}
