package usernet

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
	"github.com/seed46cd37a8/atoll/internal/reservedip"
)

// A Policy decides what a sandbox may reach. It decides on the address that is
// about to be dialled, never on a name: a name that resolves to a refused
// address (DNS rebinding) is refused like the address itself.
//
// Every address belongs to the narrowest range of a fixed table that holds it,
// else it is public. NAT64 and IPv4-mapped addresses are judged as the IPv4
// address in them.
//
//	never    loopback, multicast, broadcast, 0.0.0.0/8, ::, the link's own
//	         range: nothing opens these
//	special  link-local, metadata services, addresses of the host itself,
//	         documentation, benchmarks, reserved: opened by networks only
//	private  RFC 1918, 100.64.0.0/10, unique local IPv6, and the networks that
//	         the host is connected to: opened by networks and by names
//
// With NetworkOn public addresses are open; with NetworkEgress they have to be
// in a listed network, or be the answer to a DNS query for a listed name.
//
// A listed network opens a refused address only if it lies inside the range
// that refuses it. 10.1.0.0/16 opens those private addresses; 0.0.0.0/0 opens
// the public ones and no other. A metadata service and an address of the host
// are ranges of one address each: only listing exactly that address opens it.
// The networks of the host are those of its interfaces, as far as they are
// narrower than a /8, for IPv6 a /32.
//
// A listed name opens the private addresses that our DNS server gave as its
// answer. A wildcard does so with NetworkOn, where it has no other use; with
// NetworkEgress it opens public addresses only, since anybody with a name below
// a shared domain could otherwise point it into the private network.
//
// What Deny lists is refused, whatever opens it. Entries for requests of HTTP open
// their names only for these: package gateway checks the requests.
//
// A Policy is immutable.
type Policy struct {
	egress bool
	rules  *egress.Rules
}

// NewPolicy compiles the network of a Spec, with its secrets. Mode must not be none. It fails with ErrInvalid, and
// names the first part that is wrong, or that could not have an effect.
func NewPolicy(nw atoll.Network, secrets ...atoll.Secret) (*Policy, error) {
	p := &Policy{egress: nw.Mode == atoll.NetworkEgress}
	if nw.Mode != atoll.NetworkOn && nw.Mode != atoll.NetworkEgress {
		return nil, atoll.Errorf("network", "", atoll.ErrInvalid, "mode %q has no policy: use on or egress", nw.Mode)
	}
	var err error
	if p.rules, err = egress.New(nw, secrets); err == nil {
		err = p.checkEntries(nw)
	}
	if err != nil {
		return nil, atoll.E("network", "", atoll.ErrInvalid, err)
	}
	return p, nil
}

// checkEntries checks that each entry can have an effect.
func (p *Policy) checkEntries(nw atoll.Network) error {
	for _, s := range nw.Allow {
		entries, err := egress.Parse(s)
		for _, e := range entries {
			if e.Host == "" {
				err = checkNetwork(e.Network)
			}
		}
		if err != nil {
			return fmt.Errorf("allow %q: %w", s, err)
		}
	}
	return nil
}

func checkNetwork(n netip.Prefix) error {
	if n.Addr().Is4In6() || isWithin(n, reservedip.NAT64) {
		return fmt.Errorf("write the IPv4 address as such")
	}
	if r := rangeOf(n.Addr()); r.class == never && isWithin(n, r.prefix) {
		return fmt.Errorf("%s: nothing can open it", r.what)
	}
	return nil
}

// A trustLevel says how a policy lists a name, and how far an address that was the answer for such a
// name is trusted. A higher value includes the lower ones.
type trustLevel = egress.Trust

const (
	unlisted   = egress.Unlisted
	byOthers   = egress.ByOthers
	byWildcard = egress.ByWildcard
	byName     = egress.ByName
)

// lookUpHost returns how the policy lists a host name at a port; port 0 means at any. Case and a dot at the end do not matter. partly
// reports that it is listed for some requests of HTTP only.
func (p *Policy) lookUpHost(host string, port int) (t trustLevel, partly bool) {
	return p.rules.Allowed(strings.ToLower(strings.TrimSuffix(host, ".")), port)
}

// deniedHost returns why the policy refuses all of a host name at a port, "" if it does not. Port 0 means at all ports.
func (p *Policy) deniedHost(host string, port int) (reason string) {
	if entry := p.rules.DeniedHost(strings.ToLower(strings.TrimRight(host, ".")), port); entry != "" {
		return fmt.Sprintf("--deny has %q", entry)
	}
	return ""
}

// checkResolve returns why the DNS server does not answer for the name, "" if it does.
func (p *Policy) checkResolve(host string) (reason string) {
	if reason := p.deniedHost(host, 0); reason != "" {
		return reason
	}
	if t, _ := p.lookUpHost(host, 0); p.egress && t == unlisted {
		return egress.NotAllowed
	}
	return ""
}

// NeedsAuthority reports whether the network looks at requests in TLS, for which it needs a certificate authority.
func (p *Policy) NeedsAuthority() bool { return p.rules.EndsTLS() }

// checksNames reports whether what a connection may do can depend on the name that it says.
func (p *Policy) checksNames() bool { return p.egress || p.rules.NamesHosts() }

// refusedRange returns the range of the address of dst, and whether dst must not be dialled. host is the range that
// hostAddrs finds for the address, if any; t is the trust from DNS answers.
func (p *Policy) refusedRange(dst netip.AddrPort, host *addrRange, t trustLevel) (r addrRange, refused bool) {
	addr := reservedip.Canonical(dst.Addr())
	r = rangeOf(addr)
	if host != nil && r.class != never {
		r = *host
	}
	if r.class == never {
		return r, true
	}
	for _, n := range p.rules.AllowedNetworks(int(dst.Port())) {
		if n.Contains(addr) && (r.class == public || isWithin(n, r.prefix)) {
			return r, false
		}
	}
	switch {
	case r.class == public && !p.egress,
		r.class == public && t != unlisted,
		r.class == private && t == byName,
		r.class == private && t == byWildcard && !p.egress:
		return r, false
	}
	return r, true
}

// explainRefusal returns the verdict about addr, which r refuses. name is the name that has this address, "" if none is known.
func (r addrRange) explainRefusal(addr netip.Addr, name string) verdict {
	addr = reservedip.Canonical(addr)
	if r.class == public {
		return verdict{reason: egress.NotAllowed, opens: cmp.Or(name, addr.String())}
	}
	reason := r.describeAddress()
	if name != "" {
		reason = fmt.Sprintf("resolves to %s, %s", addr, reason)
	}
	if r.class == never {
		return verdict{reason: reason + ": nothing opens it"}
	}
	return verdict{reason: fmt.Sprintf("%s: --allow %s opens it", reason, addr), opens: addr.String()}
}

// describeAddress returns the kind of the range's addresses with an article.
func (r addrRange) describeAddress() string {
	switch {
	case strings.HasPrefix(r.what, "the "):
		return r.what
	case strings.ContainsRune("aeiou", rune(r.what[0])):
		return "an " + r.what
	}
	return "a " + r.what
}
