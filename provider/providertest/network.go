package providertest

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

var networkPromises = []promise{
	{"without a network, the host cannot be reached", []need{needNoNet}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, addr := range listenEverywhere(t) {
			h.checkUnreachable(t, sb, addr)
		}
	}},
	{"without a network, nothing outside can be reached", []need{needNoNet}, func(t *testing.T, h *harness) {
		addrs := outsideAddresses(t)
		sb := h.plainSandbox(t)
		for _, addr := range addrs {
			h.checkUnreachable(t, sb, addr)
		}
	}},
	{"without a network, no name resolves", []need{needNoNet}, func(t *testing.T, h *harness) {
		name := findKnownName(t)
		if ips := h.resolveName(t, h.plainSandbox(t), name); len(ips) > 0 {
			t.Errorf("%s resolves to %q", name, ips)
		}
	}},
	{"with a network, names resolve", []need{needNet}, func(t *testing.T, h *harness) {
		name := findKnownName(t)
		sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}})
		ips := h.resolveName(t, sb, name)
		if len(ips) == 0 {
			t.Errorf("%s does not resolve", name)
		}
		for _, ip := range ips {
			if _, err := netip.ParseAddr(ip); err != nil {
				t.Errorf("%s resolves to %q, want IP addresses", name, ip)
			}
		}
	}},
	{"with a network, the host cannot be reached either", []need{needNet, needIsolation}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}})
		for _, addr := range append(listenEverywhere(t), "169.254.169.254:80") {
			h.checkUnreachable(t, sb, addr)
		}
	}},
	{"with a network, allowed addresses can be reached, also of the host", []need{needNet, needIsolation}, func(t *testing.T, h *harness) {
		for _, addr := range listenOutside(t) {
			sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn, Allow: []string{addr.Addr().String()}}})
			h.checkReachable(t, sb, addr)
		}
	}},
	{"Stop does not wait for a server that does not read", []need{needNet, needIsolation}, func(t *testing.T, h *harness) {
		addr := listenOutside(t)[0] // no server accepts
		sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn, Allow: []string{addr.Addr().String()}}})
		_, scr := h.startReady(t, sb, scriptCommand("pour", addr.Addr().String(), int(addr.Port())))
		if scr.showsWithin("none\n", 0) {
			t.Skip("the image has neither perl nor python3 to connect with")
		}
		scr.waitForText(t, h, "stuck\n")
		runWithin(t, h.shortLimit(), "Stop", func() {
			if err := sb.Stop(h.newContext(t), 0); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
		h.waitForState(t, sb, atoll.StateStopped)
	}},
	{"with an egress list, only addresses on it can be reached", []need{needEgress, needIsolation}, func(t *testing.T, h *harness) {
		other := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"198.51.100.7"}}})
		for _, addr := range listenOutside(t) {
			sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{addr.Addr().String()}}})
			h.checkReachable(t, sb, addr)
			h.checkUnreachable(t, other, addr.String())
		}
	}},
	{"loopback works without a network", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		port := h.startEchoServer(t, sb)
		h.waitUntil(t, h.shortLimit(), func() error { return h.connectFromInside(t, sb, "127.0.0.1", port) })
	}},
	{"each sandbox has a loopback of its own", []need{needIsolation}, func(t *testing.T, h *harness) {
		a, b := h.plainSandbox(t), h.plainSandbox(t)
		port := h.startEchoServer(t, a)
		h.waitUntil(t, h.shortLimit(), func() error { return h.connectFromInside(t, a, "127.0.0.1", port) })
		if h.connectFromInside(t, b, "127.0.0.1", port) == nil {
			t.Error("the port of one sandbox can be reached from another")
		}
		if c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			c.Close()
			t.Error("the port of the sandbox can be reached on the host's loopback")
		}
	}},
}

// listenEverywhere listens on each address of this machine, and returns the addresses with their ports.
func listenEverywhere(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, ip := range listAddresses(t) {
		out = append(out, listenOn(t, ip).String())
	}
	return out
}

// listenOutside listens on one address of this machine other than loopback for each address family, and
// returns the addresses.
func listenOutside(t *testing.T) []netip.AddrPort {
	t.Helper()
	var out []netip.AddrPort
	families := map[bool]bool{}
	for _, ip := range listAddresses(t) {
		if !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !families[ip.Is4()] {
			families[ip.Is4()] = true
			out = append(out, listenOn(t, ip))
		}
	}
	if len(out) == 0 {
		t.Skip("this machine has only loopback addresses")
	}
	return out
}

// listenOn listens on the address until the test ends.
func listenOn(t *testing.T, ip netip.Addr) netip.AddrPort {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return netip.AddrPortFrom(ip, uint16(l.Addr().(*net.TCPAddr).Port))
}

// listAddresses returns the addresses of this machine that need no zone.
func listAddresses(t *testing.T) []netip.Addr {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && !(p.Addr().Is6() && p.Addr().IsLinkLocalUnicast()) {
			out = append(out, p.Addr())
		}
	}
	return out
}

// outsideAddresses returns addresses of other machines that this machine can reach. Only those show
// that a sandbox cannot reach them. Every machine with a network has at most one for sure, its name
// server.
func outsideAddresses(t *testing.T) []string {
	t.Helper()
	conf, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Skipf("this machine has no name server: %v", err)
	}
	var out []string
	for line := range strings.Lines(string(conf)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		addr := net.JoinHostPort(f[1], "53")
		if c, err := net.DialTimeout("tcp", addr, 2*time.Second); err == nil {
			c.Close()
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		t.Skip("this machine cannot reach a name server")
	}
	return out
}

// findKnownName returns a name that this machine's name servers resolve: the host of the Go module proxy,
// which was probably used to build this test.
func findKnownName(t *testing.T) string {
	t.Helper()
	name := "proxy.golang.org"
	first, _, _ := strings.Cut(os.Getenv("GOPROXY"), ",")
	if u, err := url.Parse(first); err == nil && u.Hostname() != "" && net.ParseIP(u.Hostname()) == nil {
		name = u.Hostname()
	}
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(5*time.Second))
	defer cancel()
	r := net.Resolver{PreferGo: true}
	if _, err := r.LookupNetIP(ctx, "ip", name+"."); err != nil {
		t.Skipf("this machine's name servers do not know %s: %v", name, err)
	}
	return name
}

// resolveName returns the addresses of a name as seen from inside.
func (h *harness) resolveName(t *testing.T, sb atoll.Sandbox, name string) []string {
	t.Helper()
	cmd := scriptCommand("resolve", name)
	cmd.Timeout = atoll.Duration(h.shortLimit())
	res := h.runCommand(t, sb, cmd)
	if res.Code == 99 {
		t.Skip("the image has neither getent nor nslookup nor python3 to ask with")
	}
	return strings.Fields(string(res.Stdout))
}

// checkReachable checks that a process inside can connect to addr.
func (h *harness) checkReachable(t *testing.T, sb atoll.Sandbox, addr netip.AddrPort) {
	t.Helper()
	err := retryFor(h.shortLimit(), func() error { return h.connectFromInside(t, sb, addr.Addr().String(), int(addr.Port())) })
	if err != nil {
		t.Errorf("%s: %v", addr, err)
	}
}

// checkUnreachable checks that a process inside cannot connect to addr.
func (h *harness) checkUnreachable(t *testing.T, sb atoll.Sandbox, addr string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	if h.connectFromInside(t, sb, host, n) == nil {
		t.Errorf("%s can be reached", addr)
	}
}
