package usernet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// outside is a namespace that stands for the machine and all it can reach: it
// has every address of places, and an echo server on each. It returns the dial
// function for sockets of that machine.
func outside(t *testing.T, places ...string) DialFunc {
	t.Helper()
	ns := need(t)
	link := ns.Link()
	t.Cleanup(func() { link.Close() })
	err := ns.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, s := range places {
			addr := netip.MustParseAddr(s)
			if !addr.IsLoopback() {
				a := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(addr, addr.BitLen()))}
				if err := netlink.AddrAdd(lo, a); err != nil {
					return err
				}
			}
			l, err := net.Listen("tcp", net.JoinHostPort(s, "80"))
			if err != nil {
				return err
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				acceptAll(l, echo)
			}()
			t.Cleanup(func() {
				l.Close()
				<-done
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = ns.do(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
}

// Real dials to servers that are really there: each is refused by the policy
// and by nothing else, as the same dial with the right entry in Allow shows.
func TestRefusals(t *testing.T) {
	places := map[string]string{ // address -> entry that opens it, "" for none needed
		"5.5.5.5":         "",
		"10.9.9.9":        "10.9.0.0/16",
		"172.20.0.1":      "172.16.0.0/12",
		"192.168.77.1":    "192.168.77.1",
		"100.64.7.7":      "100.64.0.0/10",
		"100.100.100.200": "100.100.100.200",
		"169.254.7.7":     "169.254.0.0/16",
		"169.254.169.254": "169.254.169.254",
		"168.63.129.16":   "168.63.129.16",
		"198.18.3.3":      "198.18.0.0/15",
	}
	all := make([]string, 0, len(places))
	for a := range places {
		all = append(all, a)
	}
	dial := outside(t, all...)
	_, plain := open(t, on, Options{Dial: dial})
	for address, entry := range places {
		t.Run(address, func(t *testing.T) {
			_, err := dialIn(plain, "tcp", address+":80")
			if entry == "" && err != nil {
				t.Errorf("got %v, want it open", err)
			}
			if entry == "" {
				return
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("got %v, want connection refused", err)
			}
			_, ns := open(t, atoll.Network{Mode: atoll.NetworkOn, Allow: []string{entry}}, Options{Dial: dial})
			c, err := dialIn(ns, "tcp", address+":80")
			if err != nil {
				t.Fatalf("with %s allowed: %v", entry, err)
			}
			defer c.Close()
			roundTrip(t, c, "hello")
		})
	}
}

// A server on the machine cannot be reached at any of the machine's addresses,
// nor through the gateway.
func TestHostIsOutOfReach(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	said, log := newTally()
	_, ns := open(t, on, Options{Log: log})
	targets := []string{Gateway.Addr().String(), Gateway6.Addr().String()}
	for _, a := range list {
		// The sandbox's own loopback answers for loopback addresses; those are
		// put on the wire below.
		if ip := a.(*net.IPNet).IP; !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			targets = append(targets, ip.String())
		}
	}
	for _, host := range targets {
		if _, err := dialIn(ns, "tcp", net.JoinHostPort(host, port)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: got %v, want connection refused", host, err)
		}
	}
	if got := said.of("dial"); got != 0 {
		t.Errorf("%d dials left the network", got)
	}
}

func TestLoopbackOnTheWire(t *testing.T) {
	said, log := newTally()
	_, ns := open(t, on, Options{Log: log})
	err := ns.do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		eth, err := netlink.LinkByName(Interface)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(lo); err != nil {
			return err
		}
		dst := ipNet(netip.MustParsePrefix("127.9.9.9/32"))
		return netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: dst, Gw: Gateway.Addr().AsSlice(), Table: 255})
	})
	if err != nil {
		t.Skip("cannot put loopback addresses on the wire:", err)
	}
	before := packetsSent(t, ns)
	err = ns.do(func() error {
		c, err := (&net.Dialer{Timeout: 300 * time.Millisecond}).Dial("tcp", "127.9.9.9:80")
		if err == nil {
			c.Close()
		}
		return err
	})
	if err == nil {
		t.Error("a loopback address was reached")
	}
	if packetsSent(t, ns) == before {
		t.Skip("the kernel did not put the packet on the wire")
	}
	if got := said.of("dial"); got != 0 {
		t.Errorf("%d dials left the network", got)
	}
}

// packetsSent returns the number of packets that the namespace has put on the wire.
func packetsSent(t *testing.T, ns *Namespace) (n uint64) {
	t.Helper()
	err := ns.do(func() error {
		eth, err := netlink.LinkByName(Interface)
		if err == nil {
			n = eth.Attrs().Statistics.TxPackets
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A refused datagram is answered with an ICMP error, not with silence.
func TestUDPRefused(t *testing.T) {
	said, log := newTally()
	n, ns := open(t, on, Options{Log: log})
	for _, address := range []string{"10.0.0.1:53", "169.254.169.254:80", "192.0.0.1:123", "[fd12::1]:53"} {
		c := mustDialIn(t, ns, "udp", address)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: got %v, want connection refused", address, err)
		}
	}
	if refused, flows := said.of("refused"), openFlows(n); refused != 4 || flows != 0 {
		t.Errorf("got %d refused and %d flows, want 4 and none", refused, flows)
	}
}

// The gateway answers ping, and does not pretend that the world does.
func TestPing(t *testing.T) {
	_, ns := open(t, on, Options{})
	for address, want := range map[string]bool{"192.0.0.1": true, "fd61:746f:6c6c::1": true, "1.1.1.1": false, "2606:4700::1": false} {
		patience := testenv.Scale(time.Second)
		if want {
			patience *= 20
		}
		if got := ping(t, ns, netip.MustParseAddr(address), patience); got != want {
			t.Errorf("ping %s: answered %t, want %t", address, got, want)
		}
	}
}

// ping reports whether addr answers within a time.
func ping(t *testing.T, ns *Namespace, addr netip.Addr, within time.Duration) bool {
	t.Helper()
	network, request, reply := "ip4:icmp", icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply)
	if addr.Is6() {
		network, request, reply = "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	c := mustDialIn(t, ns, network, addr.String())
	defer c.Close()
	msg := icmp.Message{Type: request, Body: &icmp.Echo{ID: 7, Seq: 1, Data: []byte("atoll")}}
	b, err := msg.Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(within))
	for buf := make([]byte, 1500); ; {
		n, _, err := c.(*net.IPConn).ReadFromIP(buf) // Read would keep the IP header
		if err != nil {
			return false
		}
		if m, err := icmp.ParseMessage(reply.Protocol(), buf[:n]); err == nil && m.Type == reply {
			return true
		}
	}
}
