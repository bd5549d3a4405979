package usernet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/windows"
)

// systemResolver returns a resolver that asks the servers of this computer's programs.
func systemResolver() Resolver { return &adapters{} }

// adapters asks the servers of the network adapters that are up and have a gateway, in the order of
// Windows.
type adapters struct {
	mu      sync.Mutex
	checked time.Time // guarded by mu
	servers []string  // guarded by mu
}

// Resolve implements Resolver.
func (a *adapters) Resolve(ctx context.Context, question dns.Question, dnssec bool) (*dns.Msg, error) {
	servers, err := a.serverAddresses()
	if err != nil {
		return nil, err
	}
	return askServers(ctx, servers, question, dnssec)
}

// serverAddresses returns the servers as addresses to dial.
func (a *adapters) serverAddresses() ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.servers != nil && time.Since(a.checked) < confAge {
		return a.servers, nil
	}
	first, err := adapterList()
	if err != nil {
		return nil, err
	}
	var servers []string
	for i := first; i != nil; i = i.Next {
		if i.OperStatus != windows.IfOperStatusUp || i.FirstGatewayAddress == nil {
			continue
		}
		for s := i.FirstDnsServerAddress; s != nil; s = s.Next {
			if addr := serverAddress(&s.Address); addr.IsValid() {
				servers = append(servers, net.JoinHostPort(addr.String(), "53"))
			}
		}
	}
	if len(servers) == 0 {
		return nil, errors.New("no network adapter that is up has a DNS server")
	}
	a.servers, a.checked = servers, time.Now()
	return servers, nil
}

// adapterList returns the first of this computer's adapters.
func adapterList() (*windows.IpAdapterAddresses, error) {
	const flags = windows.GAA_FLAG_INCLUDE_GATEWAYS
	size := uint32(15 << 10) // as Windows advises
	for {
		b := make([]byte, size)
		first := (*windows.IpAdapterAddresses)(unsafe.Pointer(&b[0]))
		err := windows.GetAdaptersAddresses(windows.AF_UNSPEC, flags, 0, first, &size)
		switch {
		case err == nil && size == 0:
			return nil, nil
		case err == nil:
			return first, nil
		case !errors.Is(err, windows.ERROR_BUFFER_OVERFLOW) || size <= uint32(len(b)):
			return nil, err
		}
	}
}

// unsetServers holds the addresses that Windows reports for adapters without a configured server.
var unsetServers = netip.MustParsePrefix("fec0::/10")

// serverAddress returns the address of a server; the zero Addr if it is useless.
func serverAddress(s *windows.SocketAddress) netip.Addr {
	sa, err := s.Sockaddr.Sockaddr()
	if err != nil {
		return netip.Addr{}
	}
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr)
	case *syscall.SockaddrInet6:
		addr := netip.AddrFrom16(sa.Addr)
		if unsetServers.Contains(addr) {
			return netip.Addr{}
		}
		if addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(strconv.Itoa(int(sa.ZoneId)))
		}
		return addr
	}
	return netip.Addr{}
}
