package usernet

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/seed46cd37a8/atoll"
)

// The benchmarks compare with a veth pair between two namespaces, which is
// what a bridge would use at best. Both are measured by turns in one run; the
// ratio is what counts.

// vethPair connects two namespaces; it returns a dialler in the one and a
// listener in the other.
func vethPair(b *testing.B) (client *Namespace, l net.Listener) {
	b.Helper()
	client, server := need(b), need(b)
	for _, ns := range []*Namespace{client, server} {
		link := ns.Link()
		b.Cleanup(func() { link.Close() })
	}
	setUp := func(name, address string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(address))}); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}
	err := client.do(func() error {
		veth := &netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: "pair0"},
			PeerName:      "pair1",
			PeerNamespace: netlink.NsFd(server.file.Fd()),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return setUp("pair0", "10.7.7.1/24")
	})
	if err != nil {
		b.Fatal(err)
	}
	err = server.do(func() (err error) {
		if err := setUp("pair1", "10.7.7.2/24"); err != nil {
			return err
		}
		l, err = net.Listen("tcp", "10.7.7.2:0")
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	return client, l
}

// connect returns a connection through the user-mode network and one through
// the veth pair, each to a server that runs handle.
func connect(b *testing.B, handle func(*net.TCPConn)) (user, veth net.Conn) {
	b.Helper()
	w := world{"tcp 1.2.3.4:80": serveTCP(b, handle)}
	_, ns := open(b, on, Options{Dial: w.dial})
	client, l := vethPair(b)
	go acceptAll(l, handle)
	user = mustDialIn(b, ns, "tcp", "1.2.3.4:80")
	veth = mustDialIn(b, client, "tcp", l.Addr().String())
	for _, c := range []net.Conn{user, veth} {
		_ = c.SetDeadline(time.Time{})
	}
	return user, veth
}

// compare runs f on both by turns and reports medians.
func compare(b *testing.B, user, veth net.Conn, f func(net.Conn) error, report func(user, veth time.Duration)) {
	b.Helper()
	var times [2][]time.Duration
	for b.Loop() {
		for i, c := range []net.Conn{user, veth} {
			start := time.Now()
			if err := f(c); err != nil {
				b.Fatal(err)
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	report(median(times[0]), median(times[1]))
	b.ReportMetric(0, "ns/op") // of both together: means nothing
}

func median(d []time.Duration) time.Duration {
	slices.SortFunc(d, cmp.Compare[time.Duration])
	return d[len(d)/2]
}

const benchSize = 32 << 20

// A receiver answers each benchSize bytes with one.
func receiver(c *net.TCPConn) {
	for {
		if _, err := io.CopyN(io.Discard, c, benchSize); err != nil {
			return
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return
		}
	}
}

// A sender answers each byte with benchSize.
func sender(c *net.TCPConn) {
	data, b := make([]byte, 1<<20), make([]byte, 1)
	for {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		for range benchSize / len(data) {
			if _, err := c.Write(data); err != nil {
				return
			}
		}
	}
}

func BenchmarkThroughput(b *testing.B) {
	rate := func(d time.Duration) float64 { return benchSize / 1e6 / d.Seconds() }
	report := func(b *testing.B) func(user, veth time.Duration) {
		return func(user, veth time.Duration) {
			b.ReportMetric(rate(user), "MB/s")
			b.ReportMetric(rate(veth), "veth-MB/s")
			b.ReportMetric(rate(user)/rate(veth), "ratio")
		}
	}
	data, one := make([]byte, 1<<20), make([]byte, 1)
	b.Run("up", func(b *testing.B) {
		user, veth := connect(b, receiver)
		compare(b, user, veth, func(c net.Conn) error {
			for range benchSize / len(data) {
				if _, err := c.Write(data); err != nil {
					return err
				}
			}
			_, err := io.ReadFull(c, one)
			return err
		}, report(b))
	})
	b.Run("down", func(b *testing.B) {
		user, veth := connect(b, sender)
		compare(b, user, veth, func(c net.Conn) error {
			if _, err := c.Write(one); err != nil {
				return err
			}
			_, err := io.CopyN(io.Discard, c, benchSize)
			return err
		}, report(b))
	})
}

func BenchmarkLatency(b *testing.B) {
	user, veth := connect(b, echo)
	p := []byte("ping")
	compare(b, user, veth, func(c net.Conn) error {
		if _, err := c.Write(p); err != nil {
			return err
		}
		_, err := io.ReadFull(c, p)
		return err
	}, func(user, veth time.Duration) {
		b.ReportMetric(float64(user.Nanoseconds())/1e3, "us")
		b.ReportMetric(float64(veth.Nanoseconds())/1e3, "veth-us")
		b.ReportMetric(float64(user)/float64(veth), "ratio")
	})
}

// BenchmarkConnect is a connection from SYN to first byte and back.
func BenchmarkConnect(b *testing.B) {
	w := world{"tcp 1.2.3.4:80": serveTCP(b, echo)}
	_, ns := open(b, on, Options{Dial: w.dial})
	p := []byte("ping")
	err := ns.do(func() error { // once: entering takes as long
		for b.Loop() {
			c, err := net.Dial("tcp", "1.2.3.4:80")
			if err != nil {
				return err
			}
			if _, err := c.Write(p); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, p); err != nil {
				return err
			}
			c.Close()
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkNamed compares an address that is open for a name with one that is open as such: a new connection of TLS with a request, and a
// request on a connection of HTTP that is open already. The difference is what the look at names adds.
func BenchmarkNamed(b *testing.B) {
	client := func(allow, scheme string, keep bool) func() error {
		_, ns := open(b, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{allow}}, Options{Dial: manyNames(b).dial, Resolver: manyZone})
		ask(b, ns, "udp", question("good.example.", dns.TypeA))
		port := map[string]string{"http": "80", "https": "443"}[scheme]
		transport := &http.Transport{
			DialContext: func(_ context.Context, network, _ string) (net.Conn, error) {
				return dialIn(ns, network, "1.2.3.4:"+port)
			},
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: !keep,
		}
		b.Cleanup(transport.CloseIdleConnections)
		return func() error {
			resp, err := (&http.Client{Transport: transport}).Get(scheme + "://good.example/")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
	}
	for name, c := range map[string]struct {
		scheme string
		keep   bool
	}{"tls": {"https", false}, "http": {"http", true}} {
		b.Run(name, func(b *testing.B) {
			named, plain := client("good.example", c.scheme, c.keep), client("1.2.3.4", c.scheme, c.keep)
			var times [2][]time.Duration
			for b.Loop() {
				for i, f := range []func() error{named, plain} {
					start := time.Now()
					if err := f(); err != nil {
						b.Fatal(err)
					}
					times[i] = append(times[i], time.Since(start))
				}
			}
			us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
			b.ReportMetric(us(median(times[0])), "named-us")
			b.ReportMetric(us(median(times[1])), "plain-us")
			b.ReportMetric(us(median(times[0])-median(times[1])), "added-us")
			b.ReportMetric(0, "ns/op") // of both together: means nothing
		})
	}
}

// BenchmarkNamespace measures the time that a sandbox waits for its namespace before it starts.
func BenchmarkNamespace(b *testing.B) {
	for _, device := range []Device{DeviceTAP, DevicePacket} {
		b.Run(string(device), func(b *testing.B) {
			for b.Loop() {
				ns, err := NewNamespace(NamespaceOptions{Device: device})
				if err != nil {
					b.Skip(err)
				}
				n, err := New(ns.Link(), Options{Policy: &Policy{}})
				if err != nil {
					b.Fatal(err)
				}
				n.Close()
				ns.Close()
			}
		})
	}
}
