package usernet

import (
	"net/netip"

	"github.com/seed46cd37a8/atoll/internal/reservedip"
)

// class orders ranges of addresses by what can open them.
type class int

const (
	public class = iota
	private
	special
	never
)

type addrRange struct {
	prefix netip.Prefix
	class  class
	what   string
}

// reservedRanges holds the ranges that are not public: all that IANA's registries of special addresses
// call not globally reachable, all of IPv6 that is not allocated (only 2000::/3 is), and the
// metadata services of cloud providers, which answer any caller with credentials.
var reservedRanges = func() []addrRange {
	var all []addrRange
	add := func(c class, what string, prefixes ...string) {
		for _, s := range prefixes {
			all = append(all, addrRange{netip.MustParsePrefix(s), c, what})
		}
	}
	add(never, "the sandbox's own network", Gateway.Masked().String(), Gateway6.Masked().String())
	add(never, "loopback address", "127.0.0.0/8", "::1/128")
	add(never, "unspecified address", "0.0.0.0/8", "::/128")
	add(never, "multicast address", "224.0.0.0/4", "ff00::/8")
	add(never, "broadcast address", "255.255.255.255/32")
	add(private, "private address", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
	add(private, "shared address", "100.64.0.0/10")
	add(special, "link-local address", "169.254.0.0/16", "fe80::/10", "fec0::/10")
	for _, addr := range reservedip.Metadata() {
		all = append(all, addrRange{netip.PrefixFrom(addr, addr.BitLen()), special, "metadata service"})
	}
	add(special, "reserved address",
		"192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4",
		"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", // documentation
		"::/3", "4000::/2", "8000::/1",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20") // protocols (Teredo), documentation, 6to4
	return all
}()

// rangeOf returns the narrowest range that holds addr, which is canonical.
func rangeOf(addr netip.Addr) addrRange {
	found := addrRange{class: public}
	for _, r := range reservedRanges {
		if r.prefix.Contains(addr) && (found.class == public || r.prefix.Bits() > found.prefix.Bits()) {
			found = r
		}
	}
	return found
}

// isWithin reports whether all of n is in outer.
func isWithin(n, outer netip.Prefix) bool {
	return n.Bits() >= outer.Bits() && outer.Contains(n.Addr())
}
