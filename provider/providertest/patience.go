package providertest

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// patient is the group whose promises are kept beside one another, for all they do
// is wait. One look for leaks is for all of them.
const patient = "patience"

// patience are the promises of times that no option shortens.
var patience = []promise{
	{"AutoRemove removes it a while after its main process ended", nil, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Cmd: wordArgs("exit", 0), AutoRemove: true})
		h.becomes(t, sb, atoll.StateStopped)
		h.gone(t, sb, h.short()+atoll.AutoRemoveLinger)
	}},
	{"an AutoRemove sandbox whose maker was killed goes a while after its main process, with its volume", []need{needElsewhere}, func(t *testing.T, h *harness) {
		p, sb, _ := h.abandoned(t, atoll.Spec{Cmd: wordArgs("ready"), AutoRemove: true})
		if h.p.Info().Caps.Survives {
			main, err := sb.Process(h.ctx(t), atoll.MainProcess)
			if err != nil {
				t.Fatalf("Process: %v", err)
			}
			if err := main.Signal(h.ctx(t), atoll.SIGKILL); err != nil {
				t.Errorf("Signal: %v", err)
			}
		}
		h.poll(t, h.short()+atoll.AutoRemoveLinger, func() error { return empty(h.ctx(t), p) })
		_, err := sb.Status(h.ctx(t))
		wantKind(t, "Status", err, atoll.ErrNotFound)
	}},
	{"Stop with a negative grace gives the default one", nil, func(t *testing.T, h *harness) {
		if testing.Short() {
			t.Skipf("-short: it takes %v", atoll.DefaultStopGrace)
		}
		sb := h.idle(t)
		h.started(t, sb, word("deaf"))
		begin := time.Now()
		if err := sb.Stop(h.ctx(t), -1); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if took := time.Since(begin); took < atoll.DefaultStopGrace-50*time.Millisecond || took > atoll.DefaultStopGrace+h.short() {
			t.Errorf("Stop took %v, want the default grace of %v", took, atoll.DefaultStopGrace)
		}
	}},
}
