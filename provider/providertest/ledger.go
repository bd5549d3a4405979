package providertest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	pass "github.com/seed46cd37a8/atoll/provider/secret"
)

var ledgers = []promise{
	{"a sandbox's secret fits the hash that is inside, and is nowhere else", nil, func(t *testing.T, h *harness) {
		h.needSecrets(t)
		sb := h.create(t, atoll.Spec{Name: "web", Env: []string{"A=b"}})
		raw := h.secretOf(t, sb)
		if hash := h.inside(t, sb); !pass.Check(hash, raw) {
			t.Errorf("inside there is %q, which is no hash of the secret", hash)
		}
		if other := h.secretOf(t, h.idle(t)); other == raw {
			t.Error("two sandboxes have the same secret")
		}
		all, err := h.p.List(h.ctx(t), atoll.Filter{})
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		told := []any{h.status(t, sb), all}
		for ev, err := range h.p.Watch(h.ctx(t)) {
			if err != nil {
				t.Fatalf("Watch: %v", err)
			}
			if told = append(told, ev); ev.Type == atoll.EventSynced {
				break
			}
		}
		text, err := json.Marshal(told)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{raw, atoll.SecretVar} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s is told: %s", word, text)
			}
		}
	}},
	{"a secret stays through a stop, and with the data volume", nil, func(t *testing.T, h *harness) {
		h.needSecrets(t)
		sb := h.idle(t)
		raw := h.secretOf(t, sb)
		if h.p.Info().Caps.Restart {
			if err := sb.Stop(h.ctx(t), 0); err != nil {
				t.Fatalf("Stop: %v", err)
			}
			if err := sb.Start(h.ctx(t)); err != nil {
				t.Fatalf("Start: %v", err)
			}
			if got := h.secretOf(t, sb); got != raw || !pass.Check(h.inside(t, sb), raw) {
				t.Errorf("after a stop and a start the secret is another one")
			}
		}
		if err := sb.Remove(h.ctx(t)); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		_, err := atoll.Secret(h.ctx(t), h.p, sb.ID())
		wantKind(t, "Secret of a removed sandbox", err, atoll.ErrNotFound)
		sb = h.create(t, atoll.Spec{ID: sb.ID()})
		if got := h.secretOf(t, sb); got != raw || !pass.Check(h.inside(t, sb), raw) {
			t.Error("a sandbox that was made again has another secret")
		}
		if err := sb.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if got := h.secretOf(t, h.create(t, atoll.Spec{ID: sb.ID()})); got == raw {
			t.Error("the secret was not deleted with the volumes")
		}
	}},
	{"a secret can be read by another program", []need{needSurvives}, func(t *testing.T, h *harness) {
		h.needSecrets(t)
		sb := h.idle(t)
		raw := h.secretOf(t, sb)
		if got, err := atoll.Secret(h.ctx(t), h.reopen(t), sb.ID()); got != raw || err != nil {
			t.Errorf("after a restart the secret is another one: %v", err)
		}
	}},
	{"the variable of the secret cannot be set", nil, func(t *testing.T, h *harness) {
		h.needSecrets(t)
		h.refused(t, atoll.Spec{Env: []string{atoll.SecretVar + "=mine"}}, atoll.ErrInvalid)
	}},
	{"Reconcile leaves what is as it should be", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		for _, opts := range []registry.ReconcileOptions{{DryRun: true}, {}, {Force: true}} {
			found, err := registry.Reconcile(h.ctx(t), h.p, opts)
			if atoll.KindOf(err) == atoll.ErrUnsupported {
				t.Skip("the provider writes nothing down")
			}
			if err != nil || found.Healthy != 1 || len(found.Findings) != 0 {
				t.Errorf("Reconcile: %+v, %v", found, err)
			}
		}
		h.output(t, sb, program("echo", "alive"))
	}},
}

// needSecrets skips the subtest unless the provider keeps secrets.
func (h *harness) needSecrets(t *testing.T) {
	t.Helper()
	_, err := atoll.Secret(h.ctx(t), h.p, atoll.NewID())
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		t.Skip("the provider keeps no secrets")
	}
	wantKind(t, "Secret of no sandbox", err, atoll.ErrNotFound)
}

func (h *harness) secretOf(t *testing.T, sb atoll.Sandbox) string {
	t.Helper()
	raw, err := atoll.Secret(h.ctx(t), h.p, sb.ID())
	if err != nil || raw == "" {
		t.Fatalf("Secret: %q, %v", raw, err)
	}
	return raw
}

// inside is what programs in the sandbox know of its secret.
func (h *harness) inside(t *testing.T, sb atoll.Sandbox) string {
	t.Helper()
	return h.output(t, sb, program("sh", "-c", "echo $"+atoll.SecretVar))
}
