package providertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var expiry = []promise{
	{"TTL removes it", nil, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{TTL: atoll.Duration(time.Second)})
		st := h.status(t, sb)
		if want := st.Created.Add(time.Second); st.Expires.Sub(want).Abs() > time.Second {
			t.Errorf("expires %v, want %v", st.Expires, want)
		}
		h.gone(t, sb, h.short()+time.Second)
	}},
	{"TTL removes a stopped one too, and one never started", nil, func(t *testing.T, h *harness) {
		ttl := atoll.Duration(time.Second)
		never, sb := h.create(t, atoll.Spec{TTL: ttl, NoStart: true}), h.create(t, atoll.Spec{TTL: ttl})
		if err := sb.Stop(h.ctx(t), 0); err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
			t.Errorf("Stop: %v", err)
		}
		h.poll(t, h.short()+time.Second, func() error { return empty(h.ctx(t), h.p) })
		h.gone(t, never, 0)
		h.gone(t, sb, 0)
	}},
	{"IdleStop stops it when nobody uses it, as Stop does", []need{needIdleStop, needRestart, needFiles}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{IdleStop: atoll.Duration(2 * time.Second)})
		h.write(t, sb, "file", "kept")
		st := h.becomes(t, sb, atoll.StateStopped)
		if !strings.Contains(st.Reason, "nobody used it") || st.Exit != nil {
			t.Errorf("reason %q, exit %v", st.Reason, st.Exit)
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.holds(t, sb, "file", "kept")
	}},
	{"IdleStop leaves what is used", []need{needIdleStop}, func(t *testing.T, h *harness) {
		const idle = 4 * time.Second
		spec := atoll.Spec{IdleStop: atoll.Duration(idle)}
		main := spec
		main.Cmd = wordArgs("ready")
		serving, executing, asked := h.create(t, main), h.create(t, spec), h.create(t, spec)
		h.started(t, executing, word("ready"))
		for range 4 {
			time.Sleep(idle / 3)
			h.output(t, asked, program("echo", "again"))
		}
		for what, sb := range map[string]atoll.Sandbox{"a main process": serving, "a process": executing, "calls": asked} {
			if st := h.status(t, sb); st.State != atoll.StateRunning {
				t.Errorf("with %s it is %s: %s", what, st.State, st.Reason)
			}
		}
	}},
	{"IdleStop can be lifted", nil, func(t *testing.T, h *harness) {
		if got := h.status(t, h.create(t, atoll.Spec{IdleStop: atoll.Never})).Spec.IdleStop; got != atoll.Never {
			t.Errorf("Spec.IdleStop is %v", got)
		}
	}},
	{"AutoRemove removes it a while after its main process ended", nil, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Cmd: wordArgs("exit", 0), AutoRemove: true})
		h.becomes(t, sb, atoll.StateStopped)
		h.gone(t, sb, h.short()+atoll.AutoRemoveLinger)
	}},
}

// gone waits until nobody knows the sandbox any more.
func (h *harness) gone(t *testing.T, sb atoll.Sandbox, limit time.Duration) {
	t.Helper()
	h.poll(t, limit, func() error {
		_, err := h.p.Get(h.ctx(t), sb.ID())
		if atoll.KindOf(err) == atoll.ErrNotFound {
			return nil
		}
		return fmt.Errorf("Get: %v, want not found", err)
	})
	_, err := sb.Status(h.ctx(t))
	wantKind(t, "Status", err, atoll.ErrNotFound)
	nothingLeft(t, h, h.p)
}
