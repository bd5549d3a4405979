package providertest

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// patienceGroup is the group whose promises all run in parallel, because they only wait. The suite
// looks for leaks once, at the end of the group.
const patienceGroup = "patience"

// patiencePromises are the promises with times that no option shortens.
var patiencePromises = []promise{
	{"AutoRemove removes the sandbox some time after its main process ended", nil, func(t *testing.T, h *harness) {
		begin := time.Now()
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("exit", 0), AutoRemove: true})
		if _, err := sb.Status(h.newContext(t)); atoll.KindOf(err) != atoll.ErrNotFound || time.Since(begin) < atoll.AutoRemoveDelay { // else this machine was too busy
			h.waitForState(t, sb, atoll.StateStopped)
		}
		h.waitUntilGone(t, sb, h.shortLimit()+atoll.AutoRemoveDelay)
	}},
	{"AutoRemove removes a sandbox whose creator was killed, with its volume", []need{needElsewhere}, func(t *testing.T, h *harness) {
		p, sb, _ := h.abandonSandbox(t, atoll.Spec{Cmd: scriptArgs("ready"), AutoRemove: true})
		if h.p.Info().Caps.Survives {
			main, err := sb.Process(h.newContext(t), atoll.MainProcess)
			if err != nil {
				t.Fatalf("Process: %v", err)
			}
			if err := main.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
				t.Errorf("Signal: %v", err)
			}
		}
		h.waitUntil(t, h.shortLimit()+atoll.AutoRemoveDelay, func() error { return checkEmpty(h.newContext(t), p) })
		_, err := sb.Status(h.newContext(t))
		wantKind(t, "Status", err, atoll.ErrNotFound)
	}},
	{"Stop with a negative grace uses the default", nil, func(t *testing.T, h *harness) {
		if testing.Short() {
			t.Skipf("-short: it takes %v", atoll.DefaultStopGrace)
		}
		sb := h.plainSandbox(t)
		h.startReady(t, sb, scriptCommand("deaf"))
		begin := time.Now()
		if err := sb.Stop(h.newContext(t), -1); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if took := time.Since(begin); took < atoll.DefaultStopGrace-50*time.Millisecond || took > atoll.DefaultStopGrace+h.shortLimit() {
			t.Errorf("Stop took %v, want the default grace of %v", took, atoll.DefaultStopGrace)
		}
	}},
}
