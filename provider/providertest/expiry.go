package providertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

var expiryPromises = []promise{
	{"TTL removes the sandbox", nil, func(t *testing.T, h *harness) {
		begin := time.Now()
		sb := h.createSandbox(t, atoll.Spec{TTL: atoll.Duration(time.Second)})
		st, err := sb.Status(h.newContext(t))
		switch want := st.Created.Add(time.Second); {
		case atoll.KindOf(err) == atoll.ErrNotFound && time.Since(begin) > time.Second:
			t.Log("the sandbox was gone before Status")
		case err != nil:
			t.Errorf("Status: %v", err)
		case st.Expires.Sub(want).Abs() > time.Second:
			t.Errorf("expires %v, want %v", st.Expires, want)
		}
		h.waitUntilGone(t, sb, h.shortLimit()+time.Second)
	}},
	{"TTL removes a stopped sandbox, and one never started", nil, func(t *testing.T, h *harness) {
		ttl := atoll.Duration(time.Second)
		never, sb := h.createSandbox(t, atoll.Spec{TTL: ttl, NoStart: true}), h.createSandbox(t, atoll.Spec{TTL: ttl})
		if err := sb.Stop(h.newContext(t), 0); err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
			t.Errorf("Stop: %v", err)
		}
		h.waitUntil(t, h.shortLimit()+time.Second, func() error { return checkEmpty(h.newContext(t), h.p) })
		h.waitUntilGone(t, never, 0)
		h.waitUntilGone(t, sb, 0)
	}},
	{"Extend lengthens or shortens the time to live", []need{needExtend}, func(t *testing.T, h *harness) {
		const second = atoll.Duration(time.Second)
		begin := time.Now()
		less := h.createSandbox(t, atoll.Spec{TTL: 3600 * second})
		brief := max(4*second, atoll.Duration(2*time.Since(begin))) // the next sandboxes are created meanwhile
		extended := func(to atoll.Duration) atoll.Sandbox {
			for ; ; brief *= 2 {
				sb := h.createSandbox(t, atoll.Spec{TTL: brief})
				err := atoll.Extend(h.newContext(t), sb, to)
				if atoll.KindOf(err) == atoll.ErrNotFound && time.Duration(brief) < h.longLimit() {
					t.Logf("the sandbox was gone after %s, before Extend", brief)
					continue // a busy machine needs longer
				}
				if err != nil {
					t.Fatalf("Extend by %s: %v", to, err)
				}
				return sb
			}
		}
		more, never := extended(3600*second), extended(atoll.Never)
		over := time.Now().Add(time.Duration(brief))
		if err := atoll.Extend(h.newContext(t), less, second); err != nil {
			t.Fatalf("Extend by %s: %v", second, err)
		}
		if left := time.Until(h.getStatus(t, more).Expires); left < 3500*time.Second || left > 3600*time.Second {
			t.Errorf("%s are left of an hour", left)
		}
		if got := h.getStatus(t, never).Expires; !got.IsZero() {
			t.Errorf("after Extend with Never the sandbox expires %s", got)
		}
		h.waitUntil(t, h.shortLimit()+time.Second, func() error {
			if _, err := h.p.Get(h.newContext(t), less.ID()); atoll.KindOf(err) != atoll.ErrNotFound {
				return fmt.Errorf("Get: %v, want not found", err)
			}
			return nil
		})
		time.Sleep(time.Until(over)) // until the first TTL of the others has passed
		for _, sb := range []atoll.Sandbox{more, never} {
			if st := h.getStatus(t, sb); st.State != atoll.StateRunning {
				t.Errorf("the sandbox is %s: %s", st.State, st.Reason)
			}
		}
	}},
	{"Extend applies to a stopped sandbox", []need{needExtend, needRestart}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{TTL: atoll.Duration(time.Hour)})
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := atoll.Extend(h.newContext(t), sb, atoll.Duration(time.Second)); err != nil {
			t.Fatalf("Extend: %v", err)
		}
		h.waitUntilGone(t, sb, h.shortLimit()+time.Second)
	}},
	{"Extend refuses invalid times", []need{needExtend}, func(t *testing.T, h *harness) {
		hour := atoll.Duration(time.Hour)
		limited, always := h.createSandbox(t, atoll.Spec{TTL: hour}), h.plainSandbox(t)
		wantKind(t, "Extend by nothing", atoll.Extend(h.newContext(t), limited, 0), atoll.ErrInvalid)
		wantKind(t, "Extend backwards", atoll.Extend(h.newContext(t), limited, -hour), atoll.ErrInvalid)
		wantKind(t, "Extend of a sandbox that does not expire", atoll.Extend(h.newContext(t), always, hour), atoll.ErrInvalid)
		if err := limited.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		wantKind(t, "Extend of a removed sandbox", atoll.Extend(h.newContext(t), limited, hour), atoll.ErrNotFound)
		again := h.createSandbox(t, atoll.Spec{ID: limited.ID()})
		if got := h.getStatus(t, again).Expires; !got.IsZero() {
			t.Errorf("another sandbox with the same id expires %s", got)
		}
	}},
	{"IdleRemove removes an unused sandbox", []need{needIdleStop}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{IdleStop: atoll.Duration(time.Second), IdleRemove: true})
		h.waitUntilGone(t, sb, 2*h.shortLimit()+time.Second)
	}},
	{"IdleStop stops an unused sandbox as Stop does", []need{needIdleStop, needRestart, needFiles}, func(t *testing.T, h *harness) {
		idle := h.idleStop()
		sb := h.createSandbox(t, atoll.Spec{IdleStop: atoll.Duration(idle)})
		h.writeFile(t, sb, "file", "kept")
		var st atoll.Status
		h.waitUntil(t, idle+h.shortLimit(), func() error {
			if st = h.getStatus(t, sb); st.State != atoll.StateStopped {
				return fmt.Errorf("state is %q (%s), want it stopped", st.State, st.Reason)
			}
			return nil
		})
		if !strings.Contains(st.Reason, "nobody used it") || st.Exit != nil {
			t.Errorf("reason %q, exit %v", st.Reason, st.Exit)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if h.keepsWork() {
			h.checkContent(t, sb, "file", "kept")
		}
	}},
	{"IdleStop leaves a used sandbox running", []need{needIdleStop}, func(t *testing.T, h *harness) {
		idle := h.idleStop()
		spec := atoll.Spec{IdleStop: atoll.Duration(idle)}
		main := spec
		main.Cmd = scriptArgs("ready")
		serving, executing := h.createSandbox(t, main), h.createSandbox(t, spec)
		h.startReady(t, executing, scriptCommand("ready"))
		last := time.Now() // when the last use of asked began
		asked := h.createSandbox(t, spec)
		for range 4 {
			time.Sleep(idle / 3)
			begin := time.Now()
			_, err := atoll.Output(h.newContext(t), asked, programCommand("echo", "again"))
			if err != nil && time.Since(last) < idle { // else this machine was too busy
				t.Fatalf("a call to the sandbox with calls: %v", err)
			}
			if err != nil {
				begin = time.Now()
				asked = h.createSandbox(t, spec)
			}
			last = begin
		}
		for what, sb := range map[string]atoll.Sandbox{"a main process": serving, "a process": executing, "calls": asked} {
			if st := h.getStatus(t, sb); st.State != atoll.StateRunning && (sb != asked || time.Since(last) < idle) {
				t.Errorf("the sandbox with %s is %s: %s", what, st.State, st.Reason)
			}
		}
	}},
	{"IdleStop leaves a sandbox running while its files are used", []need{needIdleStop, needFiles}, func(t *testing.T, h *harness) {
		idle := h.idleStop()
		spec := atoll.Spec{IdleStop: atoll.Duration(idle)}
		reading := h.createSandbox(t, spec)
		h.writeFile(t, reading, "file", strings.Repeat("read slowly ", 2<<20)) // more than all buffers on the way hold
		r, _, err := atoll.Files(reading).Read(h.newContext(t), "file", 0)
		if err != nil {
			t.Fatalf("Read: %v", err)
		}
		defer r.Close()
		writing := h.createSandbox(t, spec) // created only now, because the file above takes long
		content, w := newPipe(t)
		last := make(chan time.Time, 1) // when the last part was written, at the earliest
		go func() {
			fmt.Fprint(w, "written ")
			time.Sleep(2 * idle)
			last <- time.Now()
			fmt.Fprint(w, "slowly")
			w.Close()
		}()
		if _, err := atoll.Files(writing).Write(h.newContext(t), "file", content, atoll.WriteOptions{}); err != nil {
			t.Errorf("Write: %v", err)
		}
		if st := h.getStatus(t, writing); st.State != atoll.StateRunning && st.Stopped.Before((<-last).Add(idle)) { // Write may return late
			t.Errorf("while a file is written the sandbox is %s: %s", st.State, st.Reason)
		}
		if st := h.getStatus(t, reading); st.State != atoll.StateRunning {
			t.Errorf("while a file is read the sandbox is %s: %s", st.State, st.Reason)
		}
	}},
	{"IdleStop can be disabled", nil, func(t *testing.T, h *harness) {
		if got := h.getStatus(t, h.createSandbox(t, atoll.Spec{IdleStop: atoll.Never})).Spec.IdleStop; got != atoll.Never {
			t.Errorf("Spec.IdleStop is %v", got)
		}
	}},
}

// idleStop returns an IdleStop that is long enough to use a sandbox before it stops, also on slow
// backends. It grows less than time limits do, because the suite waits for several of them.
func (h *harness) idleStop() time.Duration {
	return min(max(4*time.Second, h.shortLimit()/4), max(8*time.Second, testenv.Scale(4*time.Second)))
}

// waitUntilGone waits until neither the provider nor the handle finds the sandbox.
func (h *harness) waitUntilGone(t *testing.T, sb atoll.Sandbox, limit time.Duration) {
	t.Helper()
	h.waitUntil(t, limit, func() error {
		_, err := h.p.Get(h.newContext(t), sb.ID())
		if atoll.KindOf(err) == atoll.ErrNotFound {
			return nil
		}
		return fmt.Errorf("Get: %v, want not found", err)
	})
	_, err := sb.Status(h.newContext(t))
	wantKind(t, "Status", err, atoll.ErrNotFound)
	checkNoSandbox(t, h, h.p)
}
