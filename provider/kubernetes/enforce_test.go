//go:build linux

package kubernetes_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll/provider/kubernetes"
)

// The network of the test cluster accepts NetworkPolicies and ignores them: the provider finds
// that out, records it and reports it.
func TestPoliciesAreIgnored(t *testing.T) {
	p := open(t)
	opts := optionsOf(p)
	defer p.Close()
	t.Cleanup(func() {
		lab(t).Kubectl(t, "delete", "configmap", opts.Prefix+"-cluster")
		if left := held(t); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	for range 2 {
		if enforced, err := kubernetes.Enforces(t.Context(), opts); enforced || err != nil {
			t.Fatalf("Enforces: %v, %v", enforced, err)
		}
	}
	if note := lab(t).Kubectl(t, "get", "configmap", opts.Prefix+"-cluster", "-o", "jsonpath={.data.network-policies}"); note != "ignored" {
		t.Errorf("noted is %q", note)
	}
	if caps := p.Info().Caps; caps.NetworkNone || caps.NetworkOn || caps.Egress {
		t.Errorf("Caps are %+v", caps)
	}
	probe := p.Probe(t.Context())
	if !probe.OK || len(probe.Notes) != 1 {
		t.Errorf("Probe: %+v", probe)
	}
}
