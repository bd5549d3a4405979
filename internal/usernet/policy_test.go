package usernet

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
	"github.com/seed46cd37a8/atoll/internal/reservedip"
)

func mustPolicy(tb testing.TB, mode atoll.NetworkMode, allow ...string) *Policy {
	tb.Helper()
	p, err := NewPolicy(atoll.Network{Mode: mode, Allow: allow})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// refusedByDefault has an address of every class, and how the refusal reads.
var refusedByDefault = map[string]string{
	"127.0.0.1":              "loopback address",
	"127.8.8.8":              "loopback address",
	"::1":                    "loopback address",
	"::ffff:127.0.0.1":       "loopback address",
	"64:ff9b::7f00:1":        "loopback address",
	"0.0.0.0":                "unspecified address",
	"0.1.2.3":                "unspecified address",
	"::":                     "unspecified address",
	"::ffff:0.0.0.0":         "unspecified address",
	"255.255.255.255":        "broadcast address",
	"224.0.0.251":            "multicast address",
	"239.255.255.250":        "multicast address",
	"ff02::fb":               "multicast address",
	"ff0e::1":                "multicast address",
	"192.0.0.1":              "the sandbox's own network",
	"192.0.0.2":              "the sandbox's own network",
	"fd61:746f:6c6c::1":      "the sandbox's own network",
	"10.0.0.1":               "private address",
	"10.255.255.255":         "private address",
	"172.16.0.1":             "private address",
	"172.31.255.255":         "private address",
	"192.168.0.1":            "private address",
	"::ffff:192.168.0.1":     "private address",
	"64:ff9b::a00:1":         "private address",
	"fc00::1":                "private address",
	"fd12:3456::1":           "private address",
	"100.64.0.1":             "shared address",
	"100.127.255.255":        "shared address",
	"169.254.1.1":            "link-local address",
	"fe80::1":                "link-local address",
	"fe80::1%eth0":           "link-local address",
	"fec0::1":                "link-local address",
	"169.254.169.254":        "metadata service",
	"::ffff:169.254.169.254": "metadata service",
	"64:ff9b::a9fe:a9fe":     "metadata service",
	"169.254.170.2":          "metadata service",
	"168.63.129.16":          "metadata service",
	"100.100.100.200":        "metadata service",
	"fd00:ec2::254":          "metadata service",
	"fd20:ce::254":           "metadata service",
	"192.0.0.8":              "reserved address",
	"192.0.2.1":              "reserved address",
	"198.18.0.1":             "reserved address",
	"198.51.100.1":           "reserved address",
	"203.0.113.1":            "reserved address",
	"240.0.0.1":              "reserved address",
	"64:ff9b:1::1":           "reserved address",
	"::7f00:1":               "reserved address",
	"2001::1":                "reserved address",
	"2001:db8::1":            "reserved address",
	"2002:7f00:1::1":         "reserved address",
	"2002:a00:1::1":          "reserved address",
	"4000::1":                "reserved address",
}

func TestPolicyRefusesByDefault(t *testing.T) {
	p := mustPolicy(t, atoll.NetworkOn)
	for s, want := range refusedByDefault {
		if got := refusalReason(p, netip.MustParseAddr(s), nil, unlisted); got != want {
			t.Errorf("%s: got %q, want %q", s, got, want)
		}
	}
	for _, s := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255",
		"172.32.0.0", "192.167.255.255", "192.169.0.0", "223.255.255.255", "::ffff:1.1.1.1", "64:ff9b::101:101",
		"2606:4700::1", "2a00:1450::1",
	} {
		if why := refusalReason(p, netip.MustParseAddr(s), nil, unlisted); why != "" {
			t.Errorf("%s: refused as %s", s, why)
		}
	}
}

func TestPolicyDecides(t *testing.T) {
	const open = ""
	host := func(s string) *addrRange {
		a := netip.MustParseAddr(s)
		return &addrRange{netip.PrefixFrom(a, a.BitLen()), special, "address of the host"}
	}
	on, egress := atoll.NetworkOn, atoll.NetworkEgress
	for _, tt := range []struct {
		name  string
		mode  atoll.NetworkMode
		allow string
		addr  string
		host  *addrRange
		trust trustLevel
		want  string
	}{
		{"a network opens what is in it", on, "10.1.0.0/16", "10.1.2.3", nil, unlisted, open},
		{"and no more", on, "10.1.0.0/16", "10.2.0.1", nil, unlisted, "private address"},
		{"an address opens itself", on, "192.168.1.5", "192.168.1.5", nil, unlisted, open},
		{"in its mapped form too", on, "192.168.1.5", "::ffff:192.168.1.5", nil, unlisted, open},
		{"IPv6", on, "fd12::/16", "fd12::1", nil, unlisted, open},
		{"everything does not open private addresses", on, "0.0.0.0/0", "10.0.0.1", nil, unlisted, "private address"},
		{"nor those of IPv6", on, "::/0", "fd12::1", nil, unlisted, "private address"},
		{"nor does half of it", on, "8000::/1", "fd12::1", nil, unlisted, "private address"},
		{"link-local does not open the metadata service", on, "169.254.0.0/16", "169.254.169.254", nil, unlisted, "metadata service"},
		{"but opens the rest", on, "169.254.0.0/16", "169.254.1.1", nil, unlisted, open},
		{"shared addresses do not open a metadata service among them", on, "100.64.0.0/10", "100.100.100.200", nil, unlisted, "metadata service"},
		{"the metadata service's own address does", on, "169.254.169.254", "169.254.169.254", nil, unlisted, open},
		{"6to4 can be opened", on, "2002::/16", "2002:a00:1::1", nil, unlisted, open},

		{"the host's public address", on, "", "1.2.3.4", host("1.2.3.4"), unlisted, "address of the host"},
		{"a network around the host does not open it", on, "10.1.0.0/16", "10.1.0.7", host("10.1.0.7"), unlisted, "address of the host"},
		{"nor does a name", on, "host.example", "10.1.0.7", host("10.1.0.7"), byName, "address of the host"},
		{"its own address does", on, "10.1.0.7", "10.1.0.7", host("10.1.0.7"), unlisted, open},
		{"loopback is no address of the host", on, "", "127.0.0.1", host("127.0.0.1"), unlisted, "loopback address"},

		{"a name opens its private address", on, "db.example", "10.0.0.5", nil, byName, open},
		{"so does a wildcard", on, "*.example", "10.0.0.5", nil, byWildcard, open},
		{"a name does not open a metadata service", on, "db.example", "169.254.169.254", nil, byName, "metadata service"},
		{"nor link-local", on, "db.example", "169.254.1.1", nil, byName, "link-local address"},
		{"nor loopback", on, "db.example", "127.0.0.1", nil, byName, "loopback address"},

		{"egress refuses what is not listed", egress, "", "1.1.1.1", nil, unlisted, "not in --allow"},
		{"a network", egress, "1.1.1.0/24", "1.1.1.1", nil, unlisted, open},
		{"everything public", egress, "0.0.0.0/0", "1.1.1.1", nil, unlisted, open},
		{"everything does not open private addresses in egress", egress, "0.0.0.0/0", "10.0.0.1", nil, unlisted, "private address"},
		{"a private network", egress, "10.0.0.0/8", "10.0.0.1", nil, unlisted, open},
		{"a name's answer", egress, "example.com", "1.1.1.1", nil, byName, open},
		{"a wildcard's answer", egress, "*.example.com", "1.1.1.1", nil, byWildcard, open},
		{"a name's private answer", egress, "db.example", "10.0.0.5", nil, byName, open},
		{"a wildcard's private answer", egress, "*.example.com", "10.0.0.5", nil, byWildcard, "private address"},
		{"a set's or a secret's private answer", egress, "npm", "10.0.0.5", nil, byOthers, "private address"},
		{"and with mode on", on, "npm", "10.0.0.5", nil, byOthers, "private address"},
		{"a name's rebinding to the metadata service", egress, "db.example", "169.254.169.254", nil, byName, "metadata service"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := mustPolicy(t, tt.mode, strings.Fields(tt.allow)...)
			if got := refusalReason(p, netip.MustParseAddr(tt.addr), tt.host, tt.trust); got != tt.want {
				t.Errorf("%s with %q: got %q, want %q", tt.addr, tt.allow, got, tt.want)
			}
		})
	}
}

func TestPolicyLookup(t *testing.T) {
	p := mustPolicy(t, atoll.NetworkEgress, "Example.com", "*.example.org.", "a.example.org", "bücher.example")
	for host, want := range map[string]trustLevel{
		"example.com":           byName,
		"EXAMPLE.COM.":          byName,
		"www.example.com":       unlisted,
		"example.org":           unlisted,
		"www.example.org.":      byWildcard,
		"a.b.c.example.org":     byWildcard,
		"a.example.org":         byName,
		"notexample.org":        unlisted,
		".example.org":          unlisted,
		"example.com.evil.com":  unlisted,
		"xn--bcher-kva.example": byName,
		"":                      unlisted,
		".":                     unlisted,
	} {
		if got, _ := p.lookUpHost(host, 0); got != want {
			t.Errorf("%q: got %d, want %d", host, got, want)
		}
		if got := p.checkResolve(host); (got == "") != (want != unlisted) {
			t.Errorf("resolve %q: got %q", host, got)
		}
	}
	if mustPolicy(t, atoll.NetworkOn).checkResolve("example.com") != "" {
		t.Error("with mode on, a name must not need to be listed")
	}
}

func TestPolicyRejects(t *testing.T) {
	for allow, hint := range map[string]string{
		"":                    "neither a host",
		"https://example.com": "leave out the scheme",
		"example.com:0":       "port",
		"example.com/a?b":     "without a query",
		"*":                   "wildcard",
		"*.*.com":             "wildcard",
		"a.*.com":             "wildcard",
		"a..com":              "neither a host",
		"-a.com":              "neither a host",
		"10.1":                "neither a host",
		"0x7f.1":              "neither a host",
		"exa, mple.com":       "list of methods",
		"10.1.2.3/16":         "did you mean 10.1.0.0/16",
		"10.0.0.0/33":         "not a network",
		"fe80::1%eth0":        "zone",
		"::ffff:10.0.0.1":     "IPv4 address",
		"64:ff9b::a00:0/104":  "IPv4 address",
		"127.0.0.1":           "loopback address: nothing can open it",
		"127.0.0.0/8":         "loopback address: nothing can open it",
		"::1":                 "loopback address: nothing can open it",
		"0.0.0.0":             "unspecified address: nothing can open it",
		"224.0.0.0/4":         "multicast address: nothing can open it",
		"192.0.0.1":           "own network: nothing can open it",
	} {
		_, err := NewPolicy(atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"example.com", allow}})
		if !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), hint) {
			t.Errorf("allow %q: got %v, want an invalid with %q", allow, err, hint)
		}
	}
	for _, mode := range []atoll.NetworkMode{"", atoll.NetworkNone, "host"} {
		if _, err := NewPolicy(atoll.Network{Mode: mode}); !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("mode %q: got %v, want invalid", mode, err)
		}
	}
}

func FuzzPolicy(f *testing.F) {
	for addr := range refusedByDefault {
		f.Add("example.com", addr)
	}
	for _, s := range []string{"*.example.com", "10.1.0.0/16", "0.0.0.0/0", "::/0", "8000::/1", "169.254.0.0/16", "bücher.example", "10.1", "a.b."} {
		f.Add(s, "10.1.2.3")
	}
	f.Fuzz(func(t *testing.T, allow, address string) {
		addr, addrErr := netip.ParseAddr(address)
		for _, mode := range []atoll.NetworkMode{atoll.NetworkOn, atoll.NetworkEgress} {
			p, err := NewPolicy(atoll.Network{Mode: mode, Allow: []string{allow}})
			if err != nil {
				if !errors.Is(err, atoll.ErrInvalid) {
					t.Fatalf("%q: got %v, want invalid", allow, err)
				}
				continue
			}
			entries, err := egress.Parse(allow)
			if err != nil || len(entries) == 0 {
				t.Fatalf("%q was read as %+v, %v", allow, entries, err)
			}
			if e := entries[0]; e.Host != "" && len(entries) == 1 && !e.Wildcard {
				own, _ := p.lookUpHost(e.Host, e.Port)
				if other, _ := p.lookUpHost("x"+e.Host, e.Port); own != byName || other != unlisted {
					t.Errorf("%q does not match itself alone", e.Host)
				}
			}
			if addrErr != nil {
				continue
			}
			r := rangeOf(reservedip.Canonical(addr))
			why := refusalReason(p, addr, nil, unlisted)
			if why == "" && r.class == never {
				t.Errorf("%q opens %s", allow, addr)
			}
			if why == "" && r.class != public && (len(p.rules.AllowedNetworks(80)) != 1 || !isWithin(p.rules.AllowedNetworks(80)[0], r.prefix)) {
				t.Errorf("%q opens %s, which is a %s", allow, addr, r.what)
			}
		}
	})
}

func TestHostAddrs(t *testing.T) {
	now := time.Now()
	var list []net.Addr
	var err error
	h := newHostAddrs()
	h.list = func() ([]net.Addr, error) { return list, err }
	h.now = func() time.Time { return now }
	cidr := func(s string) net.Addr {
		ip, n, _ := net.ParseCIDR(s)
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	what := func(s string) string {
		if r := h.findRange(netip.MustParseAddr(s)); r != nil {
			return r.what
		}
		return ""
	}

	list = []net.Addr{
		cidr("127.0.0.1/8"), cidr("5.6.7.8/24"), cidr("5.6.0.1/16"), cidr("2606:4700::5/64"), cidr("fe80::1/64"), cidr("10.1.2.3/24"),
		cidr("77.1.2.3/8"), cidr("2a00::1/32"), // routes rather than networks
	}
	for s, want := range map[string]string{
		"5.6.7.8":          "address of the host",
		"::ffff:5.6.7.8":   "address of the host",
		"64:ff9b::506:708": "address of the host",
		"5.6.7.255":        "broadcast address",
		"5.6.255.255":      "broadcast address",
		"5.6.7.9":          "address of a network of the host",
		"5.6.8.9":          "address of a network of the host",
		"64:ff9b::506:709": "address of a network of the host",
		"5.7.0.1":          "",
		"2606:4700::5":     "address of the host",
		"2606:4700::6":     "address of a network of the host",
		"2606:4700:0:1::6": "",
		"77.3.3.3":         "",
		"2a00::2":          "",
		"10.1.2.4":         "", // the fixed table has it
	} {
		if got := what(s); got != want {
			t.Errorf("%s: got %q, want %q", s, got, want)
		}
	}
	if got, want := h.findRange(netip.MustParseAddr("5.6.7.9")).prefix, netip.MustParsePrefix("5.6.7.0/24"); got != want {
		t.Errorf("5.6.7.9 is of %s, want the narrowest, %s", got, want)
	}
	list = []net.Addr{cidr("9.9.9.9/32")}
	if got := what("9.9.9.9"); got != "" {
		t.Errorf("the list was read again at once")
	}
	now = now.Add(2 * hostAddrsAge)
	if got, want := what("9.9.9.9"), "address of the host"; got != want {
		t.Errorf("new address: got %q, want %q", got, want)
	}
	now, err = now.Add(2*hostAddrsAge), errors.New("no netlink")
	if got := h.findRange(netip.MustParseAddr("1.1.1.1")); got == nil || got.class != never {
		t.Errorf("with no list: got %+v, want a refusal", got)
	}
}

// A campus, or a data centre, has a LAN of public addresses.
func TestNetworksOfTheHost(t *testing.T) {
	ip, n, _ := net.ParseCIDR("5.6.7.8/24")
	host := newHostRanges([]net.Addr{&net.IPNet{IP: ip, Mask: n.Mask}})
	for _, test := range []struct {
		nw    atoll.Network
		t     trustLevel
		opens bool
	}{
		{atoll.Network{Mode: atoll.NetworkOn}, unlisted, false},
		{atoll.Network{Mode: atoll.NetworkOn, Allow: []string{"0.0.0.0/0"}}, unlisted, false},
		{atoll.Network{Mode: atoll.NetworkOn, Allow: []string{"5.6.0.0/16"}}, unlisted, false},
		{atoll.Network{Mode: atoll.NetworkOn, Allow: []string{"5.6.7.0/24"}}, unlisted, true},
		{atoll.Network{Mode: atoll.NetworkOn, Allow: []string{"5.6.7.9"}}, unlisted, true},
		{atoll.Network{Mode: atoll.NetworkOn}, byName, true},
		{atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"0.0.0.0/0"}}, unlisted, false},
		{atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"5.6.7.0/25"}}, unlisted, true},
		{atoll.Network{Mode: atoll.NetworkEgress}, byWildcard, false},
		{atoll.Network{Mode: atoll.NetworkEgress}, byName, true},
	} {
		p, err := NewPolicy(test.nw)
		if err != nil {
			t.Fatal(err)
		}
		neighbour := netip.MustParseAddr("5.6.7.9")
		if why := refusalReason(p, neighbour, host.findRange(neighbour), test.t); why == "" != test.opens {
			t.Errorf("%+v, trust %d: a neighbour is refused for %q, want it open: %v", test.nw, test.t, why, test.opens)
		}
		self := netip.MustParseAddr("5.6.7.8")
		if why := refusalReason(p, self, host.findRange(self), test.t); why == "" {
			t.Errorf("%+v, trust %d: the host is open", test.nw, test.t)
		}
	}
}

func TestHostAddrsAreTheMachines(t *testing.T) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	h := newHostAddrs()
	for _, a := range list {
		addr, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if h.findRange(addr) == nil {
			t.Errorf("%s is not taken for the host's", addr)
		}
	}
}

func TestNameTable(t *testing.T) {
	now := time.Now()
	nt := newNameTable()
	nt.now = func() time.Time { return now }
	addr := netip.MustParseAddr("1.2.3.4")
	want := func(when string, want ...string) {
		t.Helper()
		if got := slices.Sorted(slices.Values(nt.listedNames(addr))); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	want("unknown")
	nt.addAnswer(addr, "a.example", false, time.Hour)
	want("not listed")
	nt.addAnswer(addr, "b.example", true, time.Hour)
	want("one name", "b.example")
	nt.addAnswer(netip.MustParseAddr("::ffff:1.2.3.4"), "c.example", true, time.Second)
	want("two names", "b.example", "c.example")
	for name, has := range map[string]bool{"a.example": false, "b.example": true, "c.example": true, "d.example": false} {
		if got := nt.hasName(addr, name); got != has {
			t.Errorf("%s: got %t, want %t", name, got, has)
		}
	}
	now = now.Add(minTrust - time.Second)
	want("short TTL, but within the minimum", "b.example", "c.example")
	now = now.Add(2 * time.Second)
	want("after the minimum", "b.example")
	now = now.Add(time.Hour)
	want("after the longest TTL")

	// Each of these is an address and a listing.
	const addresses = maxNames/2 + 10
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{1, 2, byte(i >> 8), byte(i)}) }
	for i := range addresses {
		nt.addAnswer(at(i), "", true, minTrust+time.Duration(i)*time.Second)
	}
	if nt.hasName(at(0), "") {
		t.Error("the address that expires first is still there")
	}
	if !nt.hasName(at(addresses-1), "") {
		t.Error("the last address is not there")
	}
	full := len(nt.entries)
	nt.addAnswer(at(addresses-1), "", true, minTrust)
	if got := len(nt.entries); got != full {
		t.Errorf("an answer that is there already costs %d addresses", full-got)
	}
	for i := range 2 * maxNames {
		nt.addAnswer(addr, strconv.Itoa(i), true, maxTrust)
		if got := len(nt.entries) + nt.listings; got > maxNames+1 {
			t.Fatalf("%d addresses and listings, want at most %d", got, maxNames+1)
		}
	}
	if !nt.hasName(addr, strconv.Itoa(2*maxNames-1)) {
		t.Error("the last name is not there")
	}
}

// refusalReason returns why p refuses addr, "" if it does not.
func refusalReason(p *Policy, addr netip.Addr, host *addrRange, t trustLevel) string {
	r, refused := p.refusedRange(netip.AddrPortFrom(addr, 80), host, t)
	switch {
	case !refused:
		return ""
	case r.class == public:
		return "not in --allow"
	}
	return r.what
}
