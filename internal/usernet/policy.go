package usernet

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"

	"github.com/seed46cd37a8/atoll"
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
// A Policy is immutable.
type Policy struct {
	egress    bool
	networks  []netip.Prefix
	exact     map[string]bool // host names
	wildcards []string        // ".example.com" for "*.example.com"
}

// NewPolicy compiles the network of a Spec. Mode must not be none. It fails with ErrInvalid, and
// names the first entry of Allow that is neither a host name nor a network, or that could not have
// an effect.
func NewPolicy(nw atoll.Network) (*Policy, error) {
	p := &Policy{exact: map[string]bool{}}
	switch nw.Mode {
	case atoll.NetworkOn:
	case atoll.NetworkEgress:
		p.egress = true
	default:
		return nil, atoll.Errorf("network", "", atoll.ErrInvalid, "mode %q has no policy: use on or egress", nw.Mode)
	}
	for _, s := range nw.Allow {
		if err := p.addEntry(s); err != nil {
			return nil, atoll.Errorf("network", "", atoll.ErrInvalid, "allow %q: %w", s, err)
		}
	}
	return p, nil
}

// addEntry adds an entry of Allow: a network, an address, a host name or a wildcard.
func (p *Policy) addEntry(s string) error {
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return fmt.Errorf("leave the zone out")
		}
		return p.addNetwork(netip.PrefixFrom(addr, addr.BitLen()))
	}
	if strings.Contains(s, "/") && !strings.Contains(s, "://") {
		network, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("not a network: write it like 10.1.0.0/16")
		}
		return p.addNetwork(network)
	}
	name, wildcard := strings.CutPrefix(s, "*.")
	host, err := parseHost(name)
	if err != nil {
		return err
	}
	if wildcard {
		p.wildcards = append(p.wildcards, "."+host)
	} else {
		p.exact[host] = true
	}
	return nil
}

func (p *Policy) addNetwork(n netip.Prefix) error {
	if n.Addr().Is4In6() || isWithin(n, reservedip.NAT64) {
		return fmt.Errorf("write the IPv4 address as such")
	}
	if n != n.Masked() {
		return fmt.Errorf("has bits set after its prefix: did you mean %s", n.Masked())
	}
	if r := rangeOf(n.Addr()); r.class == never && isWithin(n, r.prefix) {
		return fmt.Errorf("%s: nothing can open it", r.what)
	}
	p.networks = append(p.networks, n)
	return nil
}

// parseHost returns the name as DNS queries spell it: lower case, ASCII, no
// dot at the end.
func parseHost(s string) (string, error) {
	if strings.ContainsAny(s, ":/@") {
		return "", fmt.Errorf("write the host name only, without scheme, port or path")
	}
	if strings.Contains(s, "*") {
		return "", fmt.Errorf(`a wildcard stands for the first labels only, as in "*.example.com"`)
	}
	host, err := idna.New(idna.MapForLookup(), idna.StrictDomainName(false)).ToASCII(strings.TrimSuffix(s, "."))
	if err != nil || !validHost(host) {
		return "", fmt.Errorf(`neither a host name ("example.com", "*.example.com") nor a network ("10.1.0.0/16")`)
	}
	return host, nil
}

func validHost(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range label {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	// A name that ends in a number is an IPv4 address to some parsers ("10.1", "0x7f.1").
	_, err := strconv.ParseUint(labels[len(labels)-1], 0, 64)
	return err != nil
}

// A trustLevel says how a policy lists a name, and how far an address that was the answer for such a
// name is trusted. A higher value includes the lower ones.
type trustLevel int

const (
	unlisted trustLevel = iota
	byWildcard
	byName
)

// lookUpHost returns how the policy lists a host name. Case and a dot at the end do not matter.
func (p *Policy) lookUpHost(host string) trustLevel {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if p.exact[host] {
		return byName
	}
	for _, w := range p.wildcards {
		if strings.HasSuffix(host, w) && len(host) > len(w) {
			return byWildcard
		}
	}
	return unlisted
}

// mayResolve reports whether the DNS server answers for the name.
func (p *Policy) mayResolve(host string) bool { return !p.egress || p.lookUpHost(host) != unlisted }

// refusedRange returns the range of addr, and whether addr must not be dialled. host is the range that
// hostAddrs finds for addr, if any; t is the trust from DNS answers.
func (p *Policy) refusedRange(addr netip.Addr, host *addrRange, t trustLevel) (r addrRange, refused bool) {
	addr = reservedip.Canonical(addr)
	r = rangeOf(addr)
	if host != nil && r.class != never {
		r = *host
	}
	if r.class == never {
		return r, true
	}
	for _, n := range p.networks {
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

// notAllowed is the reason for a refused name, and for a refused public address.
const notAllowed = "not in --allow"

// explainRefusal returns the reason why addr, which r refuses, is not dialled, and what opens it. name is
// the name that has this address, "" if none is known.
func (r addrRange) explainRefusal(addr netip.Addr, name string) string {
	if r.class == public {
		return notAllowed
	}
	addr = reservedip.Canonical(addr)
	reason := r.describeAddress()
	if name != "" {
		reason = fmt.Sprintf("resolves to %s, %s", addr, reason)
	}
	if r.class == never {
		return reason + ": nothing opens it"
	}
	return fmt.Sprintf("%s: --allow %s opens it", reason, addr)
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
