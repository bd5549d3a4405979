package providertest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// refusalPromises belong to the group "network".
var refusalPromises = []promise{
	{"Refusals lists a refused name and a refused address with the reasons", []need{needRefusals, needEgress, needIsolation}, func(t *testing.T, h *harness) {
		addr := listenOutside(t)[0]
		sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"198.51.100.7"}}})
		if ips := h.resolveName(t, sb, "refused.example"); len(ips) > 0 {
			t.Errorf("refused.example resolves to %q", ips)
		}
		h.checkUnreachable(t, sb, addr.String())
		h.checkUnreachable(t, sb, addr.String())
		all := h.checkRefusals(t, sb)
		if r := findRefusal(all, "refused.example"); r.Protocol != "dns" || r.Address != "" || !strings.Contains(r.Reason, "--allow") {
			t.Errorf("Refusals = %+v, want refused.example with the reason", all)
		}
		if r := findRefusal(all, addr.String()); r.Protocol != "tcp" || r.Count != 2 || !strings.Contains(r.Reason, "--allow "+addr.Addr().String()+" opens it") {
			t.Errorf("Refusals = %+v, want %s twice with the way to open it", all, addr)
		}
	}},
	{"Refusals lists an allowed name that has a closed address with the reason", []need{needRefusals, needEgress, needIsolation}, func(t *testing.T, h *harness) {
		name := findKnownName(t)
		sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{name}}})
		h.runForCode(t, sb, scriptCommand("connect", name, 9))
		all := h.checkRefusals(t, sb)
		if len(all.List) == 0 {
			t.Skipf("this machine's name servers give %s an open address", name)
		}
		r := findRefusal(all, name+":9")
		if !strings.Contains(r.Reason, "resolves to "+r.Address) || !strings.Contains(r.Reason, "opens it") || r.Address == "" {
			t.Errorf("Refusals = %+v, want that %s resolves to a closed address, and how to open it", all, name)
		}
	}},
	{"an address that is open for a name is open for no other name", []need{needRefusals, needEgress, needIsolation}, func(t *testing.T, h *harness) {
		name := findKnownName(t)
		sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{name}}})
		if h.connectFromInside(t, sb, name, 443) != nil {
			t.Skipf("nothing listens on port 443 of %s, as far as this machine sees", name)
		}
		res := h.runCommand(t, sb, scriptCommand("request", name, 443, "other.example"))
		if res.Code == 99 {
			t.Skip("the image has neither perl nor python3 to connect with")
		}
		if got := string(res.Stdout); !strings.HasPrefix(got, "HTTP/1.1 403 ") || !strings.Contains(got, "other.example: not in --allow") {
			t.Errorf("a request for another host: %q, want it refused with the reason", got)
		}
		if r := findRefusal(h.checkRefusals(t, sb), "other.example:443"); r.Protocol != "http" || r.Address == "" {
			t.Errorf("Refusals has %+v for the request, want the address and the protocol http", r)
		}
	}},
	{"Refusals says that a sandbox has no network", []need{needRefusals, needNoNet}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if h.connectFromInside(t, sb, "198.51.100.7", 80) == nil {
			t.Error("198.51.100.7 can be reached")
		}
		if all := h.checkRefusals(t, sb); !all.NoNetwork || len(all.List) > 0 {
			t.Errorf("Refusals = %+v, want no network and no entries", all)
		}
	}},
	{"Refusals are bounded, and survive Stop and Start", []need{needRefusals, needEgress, needIsolation, needRestart}, func(t *testing.T, h *harness) {
		const ports = atoll.MaxRefusals + 10
		sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"198.51.100.7"}}})
		if code := h.runForCode(t, sb, scriptCommand("knock", "198.51.100.8", ports)); code == 99 {
			t.Skip("the image has neither perl nor python3 to connect with")
		}
		check := func(when string) {
			t.Helper()
			all := h.checkRefusals(t, sb)
			if all.Total != ports || len(all.List) != atoll.MaxRefusals || all.List[atoll.MaxRefusals-1].Port != ports {
				t.Errorf("%s: %d refusals of %d in %d entries %+v, want the latest %d", when, all.Total, ports, len(all.List), all.List, atoll.MaxRefusals)
			}
		}
		check("running")
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		check("stopped")
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		check("started again")
		h.checkUnreachable(t, sb, "198.51.100.9:1")
		if all := h.checkRefusals(t, sb); all.Total != ports+1 || findRefusal(all, "198.51.100.9:1").Count != 1 {
			t.Errorf("Refusals = %+v, want one more", all)
		}
	}},
}

// checkRefusals returns the refusals of the sandbox, which must not contradict each other.
func (h *harness) checkRefusals(t *testing.T, sb atoll.Sandbox) atoll.Refusals {
	t.Helper()
	all, err := atoll.RefusalsOf(h.newContext(t), sb)
	if err != nil {
		t.Fatalf("RefusalsOf: %v", err)
	}
	var sum int64
	var last time.Time
	for _, r := range all.List {
		sum += r.Count
		switch {
		case r.Reason == "" || r.Host == "" && r.Address == "" || r.Count < 1:
			err = fmt.Errorf("incomplete: %+v", r)
		case r.First.IsZero() || r.First.After(r.Last) || r.Last.After(all.Time):
			err = fmt.Errorf("times out of order: %+v", r)
		case r.Last.Before(last):
			err = errors.New("the latest is not the last")
		}
		last = r.Last
	}
	if err != nil || all.List == nil || sum > all.Total {
		t.Errorf("Refusals = %+v: %v", all, err)
	}
	return all
}

// findRefusal returns the refusal with that target; the zero Refusal if there is none.
func findRefusal(all atoll.Refusals, target string) atoll.Refusal {
	for _, r := range all.List {
		if r.Target() == target {
			return r
		}
	}
	return atoll.Refusal{}
}
