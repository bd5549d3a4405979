package usernet

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/seed46cd37a8/atoll"
)

// reported collects what a Network reports.
type reported struct {
	mu  sync.Mutex
	all []string
}

func (r *reported) addEvent(e atoll.NetworkEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one, ok := e.Refusal(); ok {
		r.all = append(r.all, fmt.Sprintf("%s %s (%s)", one.Protocol, one, one.Opens))
	}
}

func (r *reported) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.all, text)
}

// Each refusal is reported with the name that the sandbox used, the reason, and what opens it.
func TestReports(t *testing.T) {
	var got reported
	names := zone{"mirror.corp.test. 60 IN A 198.18.0.5", "a.wild.test. 60 IN A 10.1.2.3"}
	_, ns := open(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"mirror.corp.test", "*.wild.test"}}, Options{Resolver: names, Report: got.addEvent})
	for _, name := range []string{"mirror.corp.test.", "a.wild.test.", "Example.COM.", `a\027[31m\010b.evil.test.`} {
		ask(t, ns, "udp", question(name, dns.TypeA))
	}
	for _, address := range []string{"198.18.0.5:443", "10.1.2.3:80", "10.9.9.9:22", "5.6.7.8:443", "[2001:db8::1]:80", "169.254.169.254:80", "192.0.0.1:80"} {
		if c, err := dialIn(ns, "tcp", address); err == nil {
			c.Close()
			t.Errorf("%s can be reached", address)
		}
	}
	for _, want := range []string{
		"dns example.com: not in --allow (example.com)",
		`dns a\027[31m\010b.evil.test: not in --allow ()`,
		"tcp mirror.corp.test:443: resolves to 198.18.0.5, a reserved address: --allow 198.18.0.5 opens it (198.18.0.5)",
		"tcp a.wild.test:80: resolves to 10.1.2.3, a private address: --allow 10.1.2.3 opens it (10.1.2.3)",
		"tcp 10.9.9.9:22: a private address: --allow 10.9.9.9 opens it (10.9.9.9)",
		"tcp 5.6.7.8:443: not in --allow (5.6.7.8)",
		"tcp [2001:db8::1]:80: a reserved address: --allow 2001:db8::1 opens it (2001:db8::1)",
		"tcp 169.254.169.254:80: a metadata service: --allow 169.254.169.254 opens it (169.254.169.254)",
		"tcp 192.0.0.1:80: the sandbox's own network: nothing opens it ()",
	} {
		if !got.has(want) {
			t.Errorf("not reported: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("reported:\n%s", strings.Join(got.all, "\n"))
	}
}
