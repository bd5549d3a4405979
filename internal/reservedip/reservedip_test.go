package reservedip

import (
	"net/netip"
	"slices"
	"testing"
)

func TestCanonical(t *testing.T) {
	for addr, want := range map[string]string{
		"1.2.3.4":            "1.2.3.4",
		"::ffff:1.2.3.4":     "1.2.3.4",
		"::ffff:1.2.3.4%x":   "1.2.3.4",
		"64:ff9b::102:304":   "1.2.3.4",
		"64:ff9b::102:304%x": "1.2.3.4",
		"64:ff9b::1:102:304": "64:ff9b::1:102:304",
		"64:ff9b:1::102:304": "64:ff9b:1::102:304",
		"::102:304":          "::102:304",
		"2606:4700::1":       "2606:4700::1",
		"fe80::1%eth0":       "fe80::1",
	} {
		if got := Canonical(netip.MustParseAddr(addr)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

// Callers compare canonical addresses with the list, so its own must be canonical.
func TestMetadataIsCanonical(t *testing.T) {
	all := Metadata()
	for i, addr := range all {
		if Canonical(addr) != addr {
			t.Errorf("%s is %s", addr, Canonical(addr))
		}
		if slices.Contains(all[:i], addr) {
			t.Errorf("%s is there twice", addr)
		}
	}
}
