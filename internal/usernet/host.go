package usernet

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// hostAddrs knows the addresses of the machine: those of all its interfaces
// and the broadcast addresses of their networks.
type hostAddrs struct {
	list func() ([]net.Addr, error) // net.InterfaceAddrs, replaced by tests
	now  func() time.Time

	mu    sync.Mutex
	read  time.Time                // guarded by mu
	known map[netip.Addr]addrRange // guarded by mu
}

// hostAddrsAge is how old the list may be: an address that the machine has
// just been given is refused after that long.
const hostAddrsAge = time.Second

func newHostAddrs() *hostAddrs { return &hostAddrs{list: net.InterfaceAddrs, now: time.Now} }

// find returns the range of one address that refuses addr, nil when it is not
// the host's. When the addresses cannot be read, all are taken for the host's.
func (h *hostAddrs) find(addr netip.Addr) *addrRange {
	addr = canonical(addr)
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.now(); h.known == nil || now.Sub(h.read) > hostAddrsAge {
		list, err := h.list()
		if err != nil {
			return &addrRange{netip.PrefixFrom(addr, addr.BitLen()), never, "the host's addresses cannot be read"}
		}
		h.known, h.read = hostRanges(list), now
	}
	if r, ok := h.known[addr]; ok {
		return &r
	}
	return nil
}

func hostRanges(list []net.Addr) map[netip.Addr]addrRange {
	known := map[netip.Addr]addrRange{}
	for _, a := range list {
		ipnet, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(ipnet.IP)
		if !ok {
			continue
		}
		addr = canonical(addr)
		if ones, bits := ipnet.Mask.Size(); addr.Is4() && bits == 32 && ones < 31 {
			b := addr.As4()
			for i, m := range ipnet.Mask {
				b[i] |= ^m
			}
			last := netip.AddrFrom4(b)
			known[last] = addrRange{netip.PrefixFrom(last, 32), never, "broadcast address"}
		}
		known[addr] = addrRange{netip.PrefixFrom(addr, addr.BitLen()), special, "address of the host"}
	}
	return known
}
