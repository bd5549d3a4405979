// Package reservedip recognizes IP addresses with a special meaning: those that stand for
// other addresses, and those of cloud services that hand out this machine's credentials.
package reservedip

import "net/netip"

// NAT64 is the prefix of addresses that stand for the IPv4 address in their
// last 32 bits.
var NAT64 = netip.MustParsePrefix("64:ff9b::/96")

// Canonical returns the IPv4 address that addr stands for, else addr, in any
// case without a zone.
func Canonical(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if NAT64.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

// Metadata lists the metadata services of cloud providers.
func Metadata() []netip.Addr {
	var all []netip.Addr
	for _, s := range []string{
		"169.254.169.254", "fd00:ec2::254", "fd20:ce::254", // EC2, Google, Azure and most others
		"169.254.170.2", "169.254.170.23", "fd00:ec2::23", // ECS, EKS
		"169.254.169.252",              // GKE
		"fe80::a9fe:a9fe",              // OpenStack
		"168.63.129.16",                // Azure
		"100.100.100.200",              // Alibaba
		"192.0.0.192",                  // Oracle
		"169.254.0.23",                 // Tencent
		"169.254.42.42", "fd00:42::42", // Scaleway
	} {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}
