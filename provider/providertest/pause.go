package providertest

import (
	"context"
	"fmt"
	"net"
	"path"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var pauses = []promise{
	{"a paused sandbox does nothing until it is resumed", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		_, scr := h.started(t, sb, word("drip"))
		for range 2 {
			if err := atoll.Pause(h.ctx(t), sb); err != nil {
				t.Fatalf("Pause: %v", err)
			}
		}
		if st := h.status(t, sb); st.State != atoll.StatePaused || st.Ready {
			t.Errorf("state %q, ready %v; want paused", st.State, st.Ready)
		}
		quiet(t, h, scr)
		wantKind(t, "Start of a paused one", sb.Start(h.ctx(t)), atoll.ErrConflict)
		for range 2 {
			if err := atoll.Resume(h.ctx(t), sb); err != nil {
				t.Fatalf("Resume: %v", err)
			}
		}
		if st := h.status(t, sb); st.State != atoll.StateRunning {
			t.Errorf("state is %q after Resume", st.State)
		}
		more := len(scr.text())
		scr.until(t, h, "new lines", func(text string) bool { return len(text) > more })
	}},
	{"pause and resume are events", []need{needPause}, func(t *testing.T, h *harness) {
		w := h.watch(t, h.ctx(t))
		w.synced(t, h)
		sb := h.idle(t)
		if err := atoll.Pause(h.ctx(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		w.expect(t, h, sb.ID(), atoll.StatePaused)
		if err := atoll.Resume(h.ctx(t), sb); err != nil {
			t.Fatalf("Resume: %v", err)
		}
		w.expect(t, h, sb.ID(), atoll.StateRunning)
	}},
	{"a paused sandbox starts nothing", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		if err := atoll.Pause(h.ctx(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		within(t, h.short(), "Exec in a paused sandbox", func() {
			_, err := sb.Exec(h.ctx(t), program("true"))
			wantKind(t, "Exec", err, atoll.ErrStopped, atoll.ErrConflict)
		})
	}},
	{"a time limit that is over while the sandbox is paused ends the command when it is resumed", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		cmd := word("ready")
		cmd.Timeout = atoll.Duration(300 * time.Millisecond)
		p := h.start(t, sb, cmd)
		if err := atoll.Pause(h.ctx(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		time.Sleep(2 * time.Duration(cmd.Timeout))
		wantKind(t, "Signal", p.Signal(h.ctx(t), atoll.SIGTERM), atoll.ErrConflict)
		if err := atoll.Resume(h.ctx(t), sb); err != nil {
			t.Fatalf("Resume: %v", err)
		}
		if exit := h.wait(t, p); !exit.TimedOut {
			t.Errorf("exit is %v", exit)
		}
	}},
	{"nobody waits in vain for a paused sandbox", []need{needPause}, func(t *testing.T, h *harness) {
		sb, caps, port, elsewhere := h.idle(t), h.p.Info().Caps, 0, h.rootFile("f")
		if caps.Dial {
			port = h.serve(t, sb)
			h.dial(t, sb, port)
		}
		if caps.Files {
			h.write(t, sb, "note", "in the work directory")
			h.write(t, sb, elsewhere, "elsewhere")
		}
		if err := atoll.Pause(h.ctx(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		if caps.Files && caps.Volumes {
			within(t, h.short(), "reading the work directory", func() { h.holds(t, sb, "note", "in the work directory") })
		}
		for what, do := range map[string]func(context.Context) error{
			"Read":      func(ctx context.Context) error { return errOf(atoll.ReadFile(ctx, sb, elsewhere)) },
			"Write":     func(ctx context.Context) error { return atoll.WriteFile(ctx, sb, elsewhere+"2", nil, 0) },
			"List":      func(ctx context.Context) error { return errOf(atoll.Files(sb).List(ctx, path.Dir(elsewhere), false)) },
			"Dial":      func(ctx context.Context) error { return closed(atoll.Dial(ctx, sb, max(port, 1))) },
			"Usage":     func(ctx context.Context) error { return errOf(atoll.UsageOf(ctx, sb)) },
			"Processes": func(ctx context.Context) error { return errOf(atoll.Processes(ctx, sb)) },
		} {
			within(t, h.short(), what+" while it is paused", func() {
				if err := do(h.ctx(t)); err != nil && atoll.KindOf(err) != atoll.ErrUnsupported {
					wantKind(t, what+" while it is paused", err, atoll.ErrStopped, atoll.ErrConflict)
				}
			})
		}
		if err := atoll.Resume(h.ctx(t), sb); err != nil {
			t.Fatalf("Resume: %v", err)
		}
		h.output(t, sb, program("echo", "again"))
		if caps.Files {
			h.holds(t, sb, elsewhere, "elsewhere")
		}
		if caps.Dial {
			h.dial(t, sb, port)
		}
	}},
	{"a paused sandbox can be stopped", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		if err := atoll.Pause(h.ctx(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		within(t, h.short(), "Stop of a paused sandbox", func() {
			if err := sb.Stop(h.ctx(t), 0); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
		h.becomes(t, sb, atoll.StateStopped)
		wantKind(t, "Pause of a stopped one", atoll.Pause(h.ctx(t), sb), atoll.ErrStopped)
		wantKind(t, "Resume of a stopped one", atoll.Resume(h.ctx(t), sb), atoll.ErrStopped)
	}},
	{"a paused sandbox can be removed", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		h.started(t, sb, word("family"))
		if err := atoll.Pause(h.ctx(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		within(t, h.short(), "Remove of a paused sandbox", func() {
			if err := sb.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
		nothingLeft(t, h, h.p)
	}},
}

// closed closes the connection that a call returned, and returns its error.
func closed(c net.Conn, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}

// quiet waits until nothing more is printed for a moment.
func quiet(t *testing.T, h *harness, scr *screen) {
	t.Helper()
	h.poll(t, h.short(), func() error {
		before := len(scr.text())
		time.Sleep(aMoment) // nothing tells of what does not happen
		if more := len(scr.text()) - before; more > 0 {
			return fmt.Errorf("%d more bytes were printed", more)
		}
		return nil
	})
}
