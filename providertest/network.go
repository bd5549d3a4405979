package providertest

import (
	"net"
	"strconv"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

var network = []promise{
	{"without a network there is no way to the host", []need{needNoNet}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		for _, addr := range listenEverywhere(t) {
			h.unreachable(t, sb, addr)
		}
	}},
	{"without a network there is no way out", []need{needNoNet}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		for _, addr := range []string{"192.0.2.1:80", "169.254.169.254:80", "8.8.8.8:53"} {
			h.unreachable(t, sb, addr)
		}
	}},
	{"with a network there is still no way to the host", []need{needNet, needWalls}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}})
		for _, addr := range append(listenEverywhere(t), "169.254.169.254:80") {
			h.unreachable(t, sb, addr)
		}
	}},
	{"with a network what is allowed can be reached, the host too", []need{needNet, needWalls}, func(t *testing.T, h *harness) {
		addr := outsideAddress(t)
		sb := h.create(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn, Allow: []string{addr.IP.String()}}})
		h.poll(t, h.short(), func() error { return h.connect(t, sb, addr.IP.String(), addr.Port) })
	}},
	{"with an egress list what is on it can be reached, and nothing else", []need{needEgress, needWalls}, func(t *testing.T, h *harness) {
		addr := outsideAddress(t)
		sb := h.create(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{addr.IP.String()}}})
		h.poll(t, h.short(), func() error { return h.connect(t, sb, addr.IP.String(), addr.Port) })
		other := h.create(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"192.0.2.7"}}})
		h.unreachable(t, other, addr.String())
	}},
	{"loopback works without a network", nil, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		port := h.serve(t, sb)
		h.poll(t, h.short(), func() error { return h.connect(t, sb, "127.0.0.1", port) })
	}},
	{"one sandbox's loopback is not another's", []need{needWalls}, func(t *testing.T, h *harness) {
		a, b := h.idle(t), h.idle(t)
		port := h.serve(t, a)
		h.poll(t, h.short(), func() error { return h.connect(t, a, "127.0.0.1", port) })
		if h.connect(t, b, "127.0.0.1", port) == nil {
			t.Error("the port of one sandbox can be reached from another")
		}
		if c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			c.Close()
			t.Error("the port of the sandbox can be reached on the host's loopback")
		}
	}},
}

// listenEverywhere listens on each address of this machine.
func listenEverywhere(t *testing.T) []string {
	t.Helper()
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var out []string
	for _, ip := range addresses(t) {
		out = append(out, (&net.TCPAddr{IP: ip, Port: l.Addr().(*net.TCPAddr).Port}).String())
	}
	return out
}

// outsideAddress listens on an address of this machine that is not loopback.
func outsideAddress(t *testing.T) *net.TCPAddr {
	t.Helper()
	for _, ip := range addresses(t) {
		if ip.IsLoopback() {
			continue
		}
		l, err := net.Listen("tcp4", net.JoinHostPort(ip.String(), "0"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.Addr().(*net.TCPAddr)
	}
	t.Skip("this machine has no address but loopback")
	return nil
}

// addresses lists the IPv4 addresses of this machine.
func addresses(t *testing.T) []net.IP {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var out []net.IP
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			out = append(out, n.IP)
		}
	}
	return out
}

// unreachable checks that a process inside cannot connect to addr.
func (h *harness) unreachable(t *testing.T, sb atoll.Sandbox, addr string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	if h.connect(t, sb, host, n) == nil {
		t.Errorf("%s can be reached", addr)
	}
}
