package sshd

import (
	"net"
	"net/netip"
	"sync"
)

// loginSlots count logins in progress. A client has no account before its login, so the
// limit for one client is by its address: it must not lock out all others.
type loginSlots struct {
	perHost, all int // most logins

	mu     sync.Mutex
	byHost map[string]int
	used   int
}

func newLoginSlots(perHost, all int) *loginSlots {
	return &loginSlots{perHost: perHost, all: all, byHost: map[string]int{}}
}

// reserveSlot reserves a slot for a client, unless there are too many of its host or
// overall. The caller calls release.
func (s *loginSlots) reserveSlot(from net.Addr) (release func(), ok bool) {
	host := hostOf(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.all || s.byHost[host] >= s.perHost {
		return nil, false
	}
	s.used++
	s.byHost[host]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.used--
		if s.byHost[host]--; s.byHost[host] == 0 {
			delete(s.byHost, host)
		}
	}), true
}

// hostOf returns the address of a client without its port. All IPv6 addresses of one
// network of 64 bits count as one, because a host can have as many as it likes.
func hostOf(from net.Addr) string {
	at, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return from.String()
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if network, err := ip.Prefix(64); err == nil {
			return network.String()
		}
	}
	return ip.String()
}
