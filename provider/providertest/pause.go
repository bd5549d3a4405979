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

var pausePromises = []promise{
	{"a paused sandbox does nothing until it is resumed", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		_, scr := h.startReady(t, sb, scriptCommand("drip"))
		for range 2 {
			if err := atoll.Pause(h.newContext(t), sb); err != nil {
				t.Fatalf("Pause: %v", err)
			}
		}
		if st := h.getStatus(t, sb); st.State != atoll.StatePaused || st.Ready {
			t.Errorf("state %q, ready %v; want paused", st.State, st.Ready)
		}
		waitUntilQuiet(t, h, scr)
		wantKind(t, "Start of a paused sandbox", sb.Start(h.newContext(t)), atoll.ErrConflict)
		for range 2 {
			if err := atoll.Resume(h.newContext(t), sb); err != nil {
				t.Fatalf("Resume: %v", err)
			}
		}
		if st := h.getStatus(t, sb); st.State != atoll.StateRunning {
			t.Errorf("state is %q after Resume", st.State)
		}
		more := len(scr.readText())
		scr.waitUntil(t, h, "new lines", func(text string) bool { return len(text) > more })
	}},
	{"pause and resume are events", []need{needPause}, func(t *testing.T, h *harness) {
		w := h.startWatch(t, h.newContext(t))
		w.waitForSync(t, h)
		sb := h.plainSandbox(t)
		if err := atoll.Pause(h.newContext(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		w.waitForState(t, h, sb.ID(), atoll.StatePaused)
		if err := atoll.Resume(h.newContext(t), sb); err != nil {
			t.Fatalf("Resume: %v", err)
		}
		w.waitForState(t, h, sb.ID(), atoll.StateRunning)
	}},
	{"a paused sandbox starts nothing", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if err := atoll.Pause(h.newContext(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		runWithin(t, h.shortLimit(), "Exec in a paused sandbox", func() {
			_, err := sb.Exec(h.newContext(t), programCommand("true"))
			wantKind(t, "Exec", err, atoll.ErrStopped, atoll.ErrConflict)
		})
	}},
	{"a time limit that passes during a pause ends the command on Resume", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		cmd := scriptCommand("ready")
		cmd.Timeout = atoll.Duration(300 * time.Millisecond)
		for again := true; again; cmd.Timeout *= 4 {
			p := h.startProcess(t, sb, cmd)
			if err := atoll.Pause(h.newContext(t), sb); err != nil {
				t.Fatalf("Pause: %v", err)
			}
			time.Sleep(2 * time.Duration(cmd.Timeout))
			err := p.Signal(h.newContext(t), atoll.SIGTERM)
			again = atoll.KindOf(err) == atoll.ErrStopped && time.Duration(cmd.Timeout) < h.shortLimit() // the time passed before the pause
			if !again {
				wantKind(t, "Signal", err, atoll.ErrConflict)
			}
			if err := atoll.Resume(h.newContext(t), sb); err != nil {
				t.Fatalf("Resume: %v", err)
			}
			if exit := h.waitExit(t, p); !exit.TimedOut {
				t.Errorf("exit is %v", exit)
			}
		}
	}},
	{"calls to a paused sandbox return in time", []need{needPause}, func(t *testing.T, h *harness) {
		sb, caps, port, elsewhere := h.plainSandbox(t), h.p.Info().Caps, 0, h.rootFile("f")
		if caps.Dial {
			port = h.startEchoServer(t, sb)
			h.dialPort(t, sb, port)
		}
		if caps.Files {
			h.writeFile(t, sb, "note", "in the work directory")
			h.writeFile(t, sb, elsewhere, "elsewhere")
		}
		if err := atoll.Pause(h.newContext(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		if caps.Files && caps.Volumes {
			runWithin(t, h.shortLimit(), "reading the work directory", func() { h.checkContent(t, sb, "note", "in the work directory") })
		}
		for what, do := range map[string]func(context.Context) error{
			"Read":      func(ctx context.Context) error { return errOf(atoll.ReadFile(ctx, sb, elsewhere)) },
			"Write":     func(ctx context.Context) error { return atoll.WriteFile(ctx, sb, elsewhere+"2", nil, 0) },
			"List":      func(ctx context.Context) error { return errOf(atoll.Files(sb).List(ctx, path.Dir(elsewhere), false)) },
			"Dial":      func(ctx context.Context) error { return closeConn(atoll.Dial(ctx, sb, max(port, 1))) },
			"Usage":     func(ctx context.Context) error { return errOf(atoll.UsageOf(ctx, sb)) },
			"Processes": func(ctx context.Context) error { return errOf(atoll.Processes(ctx, sb)) },
		} {
			runWithin(t, h.shortLimit(), what+" while it is paused", func() {
				if err := do(h.newContext(t)); err != nil && atoll.KindOf(err) != atoll.ErrUnsupported {
					wantKind(t, what+" while it is paused", err, atoll.ErrStopped, atoll.ErrConflict)
				}
			})
		}
		if err := atoll.Resume(h.newContext(t), sb); err != nil {
			t.Fatalf("Resume: %v", err)
		}
		h.runForOutput(t, sb, programCommand("echo", "again"))
		if caps.Files {
			h.checkContent(t, sb, elsewhere, "elsewhere")
		}
		if caps.Dial {
			h.dialPort(t, sb, port)
		}
	}},
	{"a paused sandbox can be stopped", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if err := atoll.Pause(h.newContext(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		runWithin(t, h.shortLimit(), "Stop of a paused sandbox", func() {
			if err := sb.Stop(h.newContext(t), 0); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
		h.waitForState(t, sb, atoll.StateStopped)
		wantKind(t, "Pause of a stopped sandbox", atoll.Pause(h.newContext(t), sb), atoll.ErrStopped)
		wantKind(t, "Resume of a stopped sandbox", atoll.Resume(h.newContext(t), sb), atoll.ErrStopped)
	}},
	{"a paused sandbox can be removed", []need{needPause}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.startReady(t, sb, scriptCommand("family"))
		if err := atoll.Pause(h.newContext(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		runWithin(t, h.shortLimit(), "Remove of a paused sandbox", func() {
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
		checkNoSandbox(t, h, h.p)
	}},
}

// closeConn closes the connection that a call returned, and returns the call's error.
func closeConn(c net.Conn, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}

// waitUntilQuiet waits until the process prints nothing for a moment.
func waitUntilQuiet(t *testing.T, h *harness, scr *screen) {
	t.Helper()
	h.waitUntil(t, h.shortLimit(), func() error {
		before := len(scr.readText())
		time.Sleep(quietTime) // no event reports silence
		if more := len(scr.readText()) - before; more > 0 {
			return fmt.Errorf("%d more bytes were printed", more)
		}
		return nil
	})
}
