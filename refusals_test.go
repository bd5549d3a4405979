package atoll

import (
	"testing"
	"time"
)

func TestRefusalsWithin(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	all := Refusals{Time: now, List: []Refusal{{Host: "old.example", Last: now.Add(-time.Minute)}, {Host: "new.example", Last: now.Add(-time.Second)}}}
	if got := all.Within(10 * time.Second); len(got) != 1 || got[0].Host != "new.example" || len(all.List) != 2 || all.List[0].Host != "old.example" {
		t.Errorf("got %+v of %+v", got, all)
	}
}

func TestRefusalTarget(t *testing.T) {
	for want, r := range map[string]Refusal{
		"example.com: no":      {Host: "example.com", Protocol: "dns", Reason: "no"},
		"example.com:443: no":  {Host: "example.com", Address: "192.0.2.1", Port: 443, Protocol: "tcp", Reason: "no"},
		"192.0.2.1:53/udp: no": {Address: "192.0.2.1", Port: 53, Protocol: "udp", Reason: "no"},
		"[2001:db8::1]:80: no": {Address: "2001:db8::1", Port: 80, Protocol: "tcp", Reason: "no"},
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
