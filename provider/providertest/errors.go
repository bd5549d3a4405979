package providertest

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

var errorPromises = []promise{
	{"a missing sandbox is ErrNotFound", nil, func(t *testing.T, h *harness) {
		for _, id := range []string{atoll.NewID(), "6f9619ff-8b86-4011-b42d-00cf4fc964ff"} {
			_, err := h.p.Get(h.newContext(t), id)
			wantKind(t, "Get", err, atoll.ErrNotFound)
		}
		for _, ref := range []string{"no-such-name", atoll.NewID(), "not a name"} {
			_, err := atoll.Resolve(h.newContext(t), h.p, "", ref)
			wantKind(t, "Resolve "+ref, err, atoll.ErrNotFound)
		}
	}},
	{"Get with an invalid id finds no sandbox", nil, func(t *testing.T, h *harness) {
		for _, id := range []string{"", "web", "../../etc", "6f9619ff8b864011b42d00cf4fc964f", "%2e%2e", "a/b"} {
			_, err := h.p.Get(h.newContext(t), id)
			wantKind(t, "Get "+id, err, atoll.ErrNotFound, atoll.ErrInvalid)
		}
	}},
	{"a missing process is ErrNotExist, also the main process", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, id := range []string{"nope", atoll.MainProcess, "../x", ""} {
			_, err := sb.Process(h.newContext(t), id)
			wantKind(t, "Process "+id, err, atoll.ErrNotExist, atoll.ErrInvalid)
		}
	}},
	{"errors match the standard errors of the same meaning", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		_, taken := h.p.Create(h.newContext(t), h.completeSpec(atoll.Spec{ID: sb.ID()}))
		_, invalid := h.p.Create(h.newContext(t), h.completeSpec(atoll.Spec{ID: "x"}))
		_, noProcess := sb.Process(h.newContext(t), "nope")
		p := h.startProcess(t, sb, programCommand("true"))
		h.waitExit(t, p)
		for _, c := range []struct {
			what     string
			err      error
			standard error
		}{
			{"a taken id", taken, fs.ErrExist},
			{"an invalid spec", invalid, fs.ErrInvalid},
			{"a missing process", noProcess, fs.ErrNotExist},
			{"an ended process", p.Signal(h.newContext(t), atoll.SIGTERM), os.ErrProcessDone},
		} {
			if !errors.Is(c.err, c.standard) {
				t.Errorf("%s: error %v does not match %v", c.what, c.err, c.standard)
			}
		}
	}},
	{"Signal refuses an invalid signal", nil, func(t *testing.T, h *harness) {
		p, _ := h.startReady(t, h.plainSandbox(t), scriptCommand("ready"))
		for _, sig := range []atoll.Signal{0, -1, 65, 1000} {
			wantKind(t, "Signal", p.Signal(h.newContext(t), sig), atoll.ErrInvalid)
		}
		h.killProcess(t, p)
	}},
	{"List selects by name, project, label and state", nil, func(t *testing.T, h *harness) {
		a := h.createSandbox(t, atoll.Spec{Name: "a", Labels: map[string]string{"color": "red", "size": "s"}})
		b := h.createSandbox(t, atoll.Spec{Name: "b", Project: "other", Labels: map[string]string{"color": "red"}})
		c := h.createSandbox(t, atoll.Spec{Name: "c", NoStart: true})
		for _, q := range []struct {
			f    atoll.Filter
			want []atoll.Sandbox
		}{
			{atoll.Filter{}, []atoll.Sandbox{a, b, c}},
			{atoll.Filter{Name: "a"}, []atoll.Sandbox{a}},
			{atoll.Filter{Name: "none"}, nil},
			{atoll.Filter{Project: "other"}, []atoll.Sandbox{b}},
			{atoll.Filter{Project: atoll.DefaultProject}, []atoll.Sandbox{a, c}},
			{atoll.Filter{Labels: map[string]string{"color": "red"}}, []atoll.Sandbox{a, b}},
			{atoll.Filter{Labels: map[string]string{"color": "red", "size": "s"}}, []atoll.Sandbox{a}},
			{atoll.Filter{Labels: map[string]string{"color": ""}}, nil},
			{atoll.Filter{States: []atoll.State{atoll.StateCreated}}, []atoll.Sandbox{c}},
			{atoll.Filter{States: []atoll.State{atoll.StateCreated, atoll.StateRunning}}, []atoll.Sandbox{a, b, c}},
			{atoll.Filter{Project: "other", States: []atoll.State{atoll.StateCreated}}, nil},
		} {
			all, err := h.p.List(h.newContext(t), q.f)
			if err != nil || len(all) != len(q.want) {
				t.Errorf("List(%+v): %d sandboxes, %v; want %d", q.f, len(all), err, len(q.want))
				continue
			}
			for i, st := range all {
				if st.ID != q.want[i].ID() {
					t.Errorf("List(%+v): number %d is %s, want %s: the oldest first", q.f, i, st.ID, q.want[i].ID())
				}
			}
		}
	}},
}
