package providertest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
	pass "github.com/seed46cd37a8/atoll/provider/secret"
)

var registryPromises = []promise{
	{"a sandbox's secret matches the hash inside, and appears nowhere else", nil, func(t *testing.T, h *harness) {
		h.skipWithoutSecrets(t)
		sb := h.createSandbox(t, atoll.Spec{Name: "web", Env: []string{"A=b"}})
		raw := h.getSecret(t, sb)
		if hash := h.readSecretVar(t, sb); !pass.Check(hash, raw) {
			t.Errorf("the variable inside is %q, want a hash of the secret", hash)
		}
		if other := h.getSecret(t, h.plainSandbox(t)); other == raw {
			t.Error("two sandboxes have the same secret")
		}
		all, err := h.p.List(h.newContext(t), atoll.Filter{})
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		st := h.getStatus(t, sb)
		st.Spec.System = atoll.System{} // the layers' own
		for i := range all {
			all[i].Spec.System = atoll.System{}
		}
		seen := []any{st, all}
		for ev, err := range h.p.Watch(h.newContext(t)) {
			if err != nil {
				t.Fatalf("Watch: %v", err)
			}
			ev.Status.Spec.System = atoll.System{}
			if seen = append(seen, ev); ev.Type == atoll.EventSynced {
				break
			}
		}
		text, err := json.Marshal(seen)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{raw, atoll.SecretVar} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s is in the status, the list or an event: %s", word, text)
			}
		}
	}},
	{"a secret survives a stop, and lasts as long as the data volume", nil, func(t *testing.T, h *harness) {
		h.skipWithoutSecrets(t)
		sb := h.plainSandbox(t)
		raw := h.getSecret(t, sb)
		if h.p.Info().Caps.Restart {
			if err := sb.Stop(h.newContext(t), 0); err != nil {
				t.Fatalf("Stop: %v", err)
			}
			if err := sb.Start(h.newContext(t)); err != nil {
				t.Fatalf("Start: %v", err)
			}
			if got := h.getSecret(t, sb); got != raw || !pass.Check(h.readSecretVar(t, sb), raw) {
				t.Errorf("the secret changed with a stop and a start")
			}
		}
		if err := sb.Remove(h.newContext(t)); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		_, err := atoll.SecretOf(h.newContext(t), h.p, sb.ID())
		wantKind(t, "Secret of a removed sandbox", err, atoll.ErrNotFound)
		sb = h.createSandbox(t, atoll.Spec{ID: sb.ID()})
		if got := h.getSecret(t, sb); got != raw || !pass.Check(h.readSecretVar(t, sb), raw) {
			t.Error("a sandbox that was created again has another secret")
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if got := h.getSecret(t, h.createSandbox(t, atoll.Spec{ID: sb.ID()})); got == raw {
			t.Error("the secret was not deleted with the volumes")
		}
	}},
	{"another provider value returns the same secret", []need{needSurvives}, func(t *testing.T, h *harness) {
		h.skipWithoutSecrets(t)
		sb := h.plainSandbox(t)
		raw := h.getSecret(t, sb)
		if got, err := atoll.SecretOf(h.newContext(t), h.reopenProvider(t), sb.ID()); got != raw || err != nil {
			t.Errorf("after a restart the secret is %q, %v; want the same", got, err)
		}
	}},
	{"Create refuses a value for the variable of the secret", nil, func(t *testing.T, h *harness) {
		h.skipWithoutSecrets(t)
		h.wantRefused(t, atoll.Spec{Env: []string{atoll.SecretVar + "=mine"}}, atoll.ErrInvalid)
	}},
	{"Reconcile leaves healthy sandboxes alone", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, opts := range []registry.ReconcileOptions{{DryRun: true}, {}, {Force: true}} {
			found, err := registry.Reconcile(h.newContext(t), h.p, opts)
			if atoll.KindOf(err) == atoll.ErrUnsupported {
				t.Skip("the provider records no desired state")
			}
			if err != nil || found.Healthy != 1 || len(found.Findings) != 0 {
				t.Errorf("Reconcile: %+v, %v", found, err)
			}
		}
		h.runForOutput(t, sb, programCommand("echo", "alive"))
	}},
}

// skipWithoutSecrets skips the subtest unless the provider has secrets.
func (h *harness) skipWithoutSecrets(t *testing.T) {
	t.Helper()
	_, err := atoll.SecretOf(h.newContext(t), h.p, atoll.NewID())
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		t.Skip("the provider has no secrets")
	}
	wantKind(t, "Secret of no sandbox", err, atoll.ErrNotFound)
}

// getSecret returns the sandbox's secret, or fails the test.
func (h *harness) getSecret(t *testing.T, sb atoll.Sandbox) string {
	t.Helper()
	raw, err := atoll.SecretOf(h.newContext(t), h.p, sb.ID())
	if err != nil || raw == "" {
		t.Fatalf("Secret: %q, %v", raw, err)
	}
	return raw
}

// readSecretVar returns the value of the secret's variable inside the sandbox.
func (h *harness) readSecretVar(t *testing.T, sb atoll.Sandbox) string {
	t.Helper()
	return h.runForOutput(t, sb, programCommand("sh", "-c", "echo $"+atoll.SecretVar))
}
