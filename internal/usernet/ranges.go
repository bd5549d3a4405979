package usernet

import "net/netip"

// class orders ranges of addresses by what it takes to open them.
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

// ranges holds what is not public: all that IANA's registries of special
// addresses call not globally reachable, all of IPv6 that is not handed out
// (only 2000::/3 is), and the metadata services of cloud providers, which
// answer any caller with credentials.
var ranges = func() []addrRange {
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
	add(special, "metadata service",
		"169.254.169.254/32", "fd00:ec2::254/128", "fd20:ce::254/128", // EC2, Google, Azure and most others
		"169.254.170.2/32", "169.254.170.23/32", "fd00:ec2::23/128", // ECS, EKS
		"168.63.129.16/32",                    // Azure
		"100.100.100.200/32",                  // Alibaba
		"192.0.0.192/32",                      // Oracle
		"169.254.0.23/32",                     // Tencent
		"169.254.42.42/32", "fd00:42::42/128") // Scaleway
	add(special, "reserved address",
		"192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4",
		"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", // documentation
		"::/3", "4000::/2", "8000::/1",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20") // protocols (Teredo), documentation, 6to4
	return all
}()

// classify returns the narrowest range that holds addr, which is canonical.
func classify(addr netip.Addr) addrRange {
	found := addrRange{class: public}
	for _, r := range ranges {
		if r.prefix.Contains(addr) && (found.class == public || r.prefix.Bits() > found.prefix.Bits()) {
			found = r
		}
	}
	return found
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// canonical returns the IPv4 address that addr stands for, else addr.
func canonical(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if nat64.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

// within reports whether all of n is in outer.
func within(n, outer netip.Prefix) bool {
	return n.Bits() >= outer.Bits() && outer.Contains(n.Addr())
}
