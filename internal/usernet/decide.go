package usernet

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/seed46cd37a8/atoll/internal/egress"
	"github.com/seed46cd37a8/atoll/internal/reservedip"
)

// An opening says how the policy opens an address.
type opening int

const (
	closed   opening = iota
	forSome          // for some requests of HTTP to names only
	forNames         // for names only
	forAll
)

// A destination is the address of a connection.
type destination struct {
	netip.AddrPort
	names []string // listed names for which the DNS server gave the address
}

// findDestination returns the destination with that address, and the names that it has now.
func (n *Network) findDestination(addr netip.AddrPort) destination {
	return destination{addr, n.names.listedNames(addr.Addr())}
}

// A verdict is the decision of a policy.
type verdict struct {
	open   opening
	rule   string // the entry that decided; "" for none
	reason string // why it is closed; "" if it is not
	opens  string // the entry of Allow that would open it; "" if none would
}

// checkAddress returns how a policy opens a destination.
func (n *Network) checkAddress(p *Policy, to destination) (v verdict) {
	port := int(to.Port())
	if entry := p.rules.DeniedAddress(reservedip.Canonical(to.Addr()), port); entry != "" {
		return verdict{rule: entry, reason: fmt.Sprintf("--deny has %q", entry)}
	}
	host := n.host.findRange(to.Addr())
	r, refused := p.refusedRange(to.AddrPort, host, unlisted)
	if !refused {
		return verdict{open: forAll, rule: p.rules.FindNetwork(reservedip.Canonical(to.Addr()), port)}
	}
	for _, name := range to.names {
		t, partly := p.lookUpHost(name, port)
		if t == unlisted || p.deniedHost(name, port) != "" {
			continue
		}
		if r, refused = p.refusedRange(to.AddrPort, host, t); refused {
			continue
		}
		if v = (verdict{open: forNames, rule: p.rules.FindEntry(name, port)}); !partly {
			return v
		}
		v.open = forSome
	}
	if v.open == closed {
		v = n.explainAddress(p, r, to)
	}
	return v
}

// explainAddress returns the verdict about a destination, which r refuses.
func (n *Network) explainAddress(p *Policy, r addrRange, to destination) verdict {
	name, port := n.names.findName(to.Addr()), int(to.Port())
	if t, _ := p.lookUpHost(name, 0); name != "" && t != unlisted {
		if reason := p.deniedHost(name, port); reason != "" {
			return verdict{rule: p.rules.DeniedHost(name, port), reason: reason}
		}
		if t, _ := p.lookUpHost(name, port); t == unlisted {
			entry := fmt.Sprintf("%s:%d", name, port)
			return verdict{reason: "--allow has other ports of this host: --allow " + entry + " opens it", opens: entry}
		}
	}
	return r.explainRefusal(to.Addr(), name)
}

// checkName returns the verdict of a policy about a connection for a name, to a destination that it opens in this way. known is
// whether the DNS server is known to have given the address for the name.
func (n *Network) checkName(p *Policy, name string, to destination, open opening, known bool) verdict {
	port := int(to.Port())
	if reason := p.deniedHost(name, port); reason != "" {
		return verdict{rule: p.rules.DeniedHost(name, port), reason: reason}
	}
	if open == forAll {
		return verdict{open: open}
	}
	if name == "" {
		return verdict{reason: fmt.Sprintf("it names no host, and %s is open for hosts by name only", to.Addr())}
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return verdict{reason: fmt.Sprintf("it names an address, and %s is open for hosts by name only", to.Addr())}
	}
	trust, _ := p.lookUpHost(name, port)
	if trust == unlisted {
		return verdict{reason: egress.NotAllowed, opens: name}
	}
	if !known && !n.names.hasName(to.Addr(), name) {
		return verdict{reason: fmt.Sprintf("DNS did not give %s as an address of this host", to.Addr())}
	}
	if r, refused := p.refusedRange(to.AddrPort, n.host.findRange(to.Addr()), trust); refused {
		return r.explainRefusal(to.Addr(), name)
	}
	return verdict{open: open, rule: p.rules.FindEntry(name, port)}
}
