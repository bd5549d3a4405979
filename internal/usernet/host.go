package usernet

import (
	"encoding/binary"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll/internal/reservedip"
)

// hostAddrs holds the addresses of the computer: those of all its interfaces, the broadcast
// addresses of their networks, and those networks.
type hostAddrs struct {
	list func() ([]net.Addr, error) // net.InterfaceAddrs, replaced by tests
	now  func() time.Time

	mu    sync.Mutex
	read  time.Time   // guarded by mu
	known *hostRanges // guarded by mu; nil before the first time
}

// hostAddrsAge bounds the age of the list: a new address of the computer is refused after that
// time.
const hostAddrsAge = time.Second

func newHostAddrs() *hostAddrs { return &hostAddrs{list: net.InterfaceAddrs, now: time.Now} }

// findRange returns the range that refuses addr because of the host's addresses, nil if there is
// none. If the addresses cannot be read, it treats every address as the host's.
func (h *hostAddrs) findRange(addr netip.Addr) *addrRange {
	addr = reservedip.Canonical(addr)
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.now(); h.known == nil || now.Sub(h.read) > hostAddrsAge {
		list, err := h.list()
		if err != nil {
			return &addrRange{netip.PrefixFrom(addr, addr.BitLen()), never, "the host's addresses cannot be read"}
		}
		h.known, h.read = newHostRanges(list), now
	}
	return h.known.findRange(addr)
}

// hostRanges holds the ranges made of the addresses of interfaces. An address in one of their
// networks is as private as one of RFC 1918, though anybody could have it: a campus or a data
// centre with public addresses is somebody's LAN too.
type hostRanges struct {
	addrs map[netip.Addr]addrRange // of one address each
	nets  []addrRange
}

// A wider prefix is not a network that the host is connected to, but somebody's way to write a
// route.
const (
	widestNet  = 9
	widestNet6 = 33
)

func newHostRanges(list []net.Addr) *hostRanges {
	h := &hostRanges{addrs: map[netip.Addr]addrRange{}}
	for _, a := range list {
		ipnet, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(ipnet.IP)
		if !ok {
			continue
		}
		addr = reservedip.Canonical(addr)
		if ones, bits := ipnet.Mask.Size(); bits == addr.BitLen() {
			h.addNet(netip.PrefixFrom(addr, ones).Masked())
		}
		h.addrs[addr] = addrRange{netip.PrefixFrom(addr, addr.BitLen()), special, "address of the host"}
	}
	return h
}

func (h *hostRanges) addNet(p netip.Prefix) {
	widest := widestNet6
	if p.Addr().Is4() {
		widest = widestNet
	}
	if p.Bits() >= widest {
		h.nets = append(h.nets, addrRange{p, private, "address of a network of the host"})
	}
	if p.Addr().Is4() && p.Bits() < 31 {
		b := p.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|math.MaxUint32>>p.Bits())
		last := netip.AddrFrom4(b)
		h.addrs[last] = addrRange{netip.PrefixFrom(last, 32), never, "broadcast address"}
	}
}

// findRange returns the narrowest range that holds addr, nil if there is none. A network of the
// host does not matter for addresses that the fixed table refuses already.
func (h *hostRanges) findRange(addr netip.Addr) *addrRange {
	if r, ok := h.addrs[addr]; ok {
		return &r
	}
	if rangeOf(addr).class != public {
		return nil
	}
	var found *addrRange
	for _, r := range h.nets {
		if r.prefix.Contains(addr) && (found == nil || r.prefix.Bits() > found.prefix.Bits()) {
			found = &r
		}
	}
	return found
}
