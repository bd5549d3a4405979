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

// hostAddrs knows the addresses of the machine: those of all its interfaces,
// the broadcast addresses of their networks, and those networks.
type hostAddrs struct {
	list func() ([]net.Addr, error) // net.InterfaceAddrs, replaced by tests
	now  func() time.Time

	mu    sync.Mutex
	read  time.Time   // guarded by mu
	known *hostRanges // guarded by mu; nil before the first time
}

// hostAddrsAge is how old the list may be: an address that the machine has
// just been given is refused after that long.
const hostAddrsAge = time.Second

func newHostAddrs() *hostAddrs { return &hostAddrs{list: net.InterfaceAddrs, now: time.Now} }

// find returns the range that refuses addr because of where the host is, nil
// when there is none. When the addresses cannot be read, all are taken for the
// host's.
func (h *hostAddrs) find(addr netip.Addr) *addrRange {
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
	return h.known.find(addr)
}

// hostRanges are made of the addresses of interfaces. An address of one of
// their networks is as private as one of RFC 1918, though anybody could have
// it: a campus or a data centre with public addresses is somebody's LAN too.
type hostRanges struct {
	addrs map[netip.Addr]addrRange // of one address each
	nets  []addrRange
}

// What takes in so much is not a network that the host is connected to, but
// somebody's way to write a route.
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

// find returns the narrowest range that holds addr, nil when there is none. A
// network makes no difference to what the fixed table refuses already.
func (h *hostRanges) find(addr netip.Addr) *addrRange {
	if r, ok := h.addrs[addr]; ok {
		return &r
	}
	if classify(addr).class != public {
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
