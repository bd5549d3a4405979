package usernet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/seed46cd37a8/atoll"
)

// A host for many names: TLS and HTTP say which host served them, port 22 speaks first, and port 9 echoes.
func manyNames(t testing.TB) world {
	t.Helper()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "host %s", r.Host) })
	plain, secure := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of refused clients
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	web, tlsWeb := plain.Listener.Addr().String(), secure.Listener.Addr().String()
	banner := serveTCP(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "SSH-2.0-test\r\n")
		echo(c)
	})
	w := world{}
	for _, addr := range []string{"1.2.3.4", "2606:4700::1"} {
		for port, server := range map[string]string{"80": web, "8080": web, "443": tlsWeb, "8443": tlsWeb, "22": banner, "9": serveTCP(t, echo)} {
			w["tcp "+net.JoinHostPort(addr, port)] = server
		}
		w["udp "+net.JoinHostPort(addr, "443")] = serveUDP(t)
		w["udp "+net.JoinHostPort(addr, "9")] = serveUDP(t)
	}
	return w
}

// refusalList collects refusals.
type refusalList struct {
	mu   sync.Mutex
	list []atoll.Refusal
}

func (l *refusalList) addEvent(e atoll.NetworkEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := e.Refusal(); ok {
		r.Opens = "" // other tests have it
		l.list = append(l.list, r)
	}
}

// takeAll returns the refusals since the last call.
func (l *refusalList) takeAll() []atoll.Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.list = nil }()
	return l.list
}

var manyZone = zone{
	"good.example. 60 IN A 1.2.3.4", "good.example. 60 IN AAAA 2606:4700::1",
	"evil.example. 60 IN A 1.2.3.4", "other.example. 60 IN A 1.2.3.5",
	"good.example. 60 IN HTTPS 1 . alpn=h3,h2 ipv4hint=1.2.3.9",
}

// getPage requests a page from inside: of the address, with the name in TLS, unless scheme is http, and the host in the request.
func getPage(ns *Namespace, address, scheme, name, host string) (string, error) {
	transport := &http.Transport{
		DialContext:       func(_ context.Context, network, _ string) (net.Conn, error) { return dialIn(ns, network, address) },
		TLSClientConfig:   &tls.Config{ServerName: name, InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}
	req, err := http.NewRequest("GET", scheme+"://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	req.Host = host
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// An address that is open for a name is open for no other name, on no port.
func TestNamesAtOneAddress(t *testing.T) {
	var refused refusalList
	_, ns := open(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"good.example", "other.example"}},
		Options{Dial: manyNames(t).dial, Resolver: manyZone, Report: refused.addEvent})
	ask(t, ns, "udp", question("good.example.", dns.TypeA))
	ask(t, ns, "udp", question("good.example.", dns.TypeAAAA))
	ask(t, ns, "udp", question("other.example.", dns.TypeA))
	for _, addr := range []string{"1.2.3.4", "2606:4700::1"} {
		for _, port := range []string{"443", "8443"} {
			address := net.JoinHostPort(addr, port)
			if got, err := getPage(ns, address, "https", "good.example", "good.example"); got != "host good.example" || err != nil {
				t.Errorf("%s, its own name: got %q, %v", address, got, err)
			}
			for name, want := range map[string]string{
				"evil.example":  "not in --allow",
				"other.example": "DNS did not give " + addr + " as an address of this host",
				"":              "it names no host",
			} {
				refused.takeAll()
				_, err := getPage(ns, address, "https", name, "good.example")
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%s, name %q: got %v, want a reset", address, name, err)
				}
				if all := refused.takeAll(); len(all) != 1 || all[0].Protocol != "tls" || all[0].Host != name || all[0].Address != addr || !strings.Contains(all[0].Reason, want) {
					t.Errorf("%s, name %q: refused %+v, want %q", address, name, all, want)
				}
			}
		}
		for _, port := range []string{"80", "8080"} {
			address := net.JoinHostPort(addr, port)
			if got, err := getPage(ns, address, "http", "", "good.example"); got != "host good.example" || err != nil {
				t.Errorf("%s, its own name: got %q, %v", address, got, err)
			}
			for host, want := range map[string]string{
				"evil.example":               "evil.example: not in --allow",
				"other.example":              "other.example: DNS did not give " + addr + " as an address of this host",
				net.JoinHostPort(addr, port): "it names an address, and " + addr + " is open for hosts by name only",
			} {
				refused.takeAll()
				if got, err := getPage(ns, address, "http", "", host); !strings.Contains(got, "Atoll refused this request: ") || !strings.Contains(got, want) || err != nil {
					t.Errorf("%s, host %q: got %q, %v, want %q", address, host, got, err, want)
				}
				if all := refused.takeAll(); len(all) != 1 || all[0].Protocol != "http" || all[0].Address != addr {
					t.Errorf("%s, host %q: refused %+v", address, host, all)
				}
			}
		}
		c := mustDialIn(t, ns, "tcp", net.JoinHostPort(addr, "22"))
		if got := make([]byte, 14); readFull(c, got) != nil || string(got) != "SSH-2.0-test\r\n" {
			t.Errorf("%s: the server that speaks first says %q", addr, got)
		}
		roundTrip(t, c, "SSH-2.0-client\r\n")
		roundTrip(t, mustDialIn(t, ns, "tcp", net.JoinHostPort(addr, "9")), "SSH-2.0-client\r\n")
	}
}

func readFull(r io.Reader, p []byte) error {
	_, err := io.ReadFull(r, p)
	return err
}

// Dots at the end do not make another name.
func TestDotsAtTheEnd(t *testing.T) {
	_, ns := open(t, atoll.Network{Mode: atoll.NetworkOn, Deny: []string{"evil.example"}}, Options{Dial: manyNames(t).dial, Resolver: manyZone})
	for _, host := range []string{"evil.example", "evil.example.", "evil.example..", "evil.example..."} {
		if got, err := getPage(ns, "1.2.3.4:80", "http", "", host); !strings.Contains(got, "Atoll refused this request: ") || err != nil {
			t.Errorf("host %q: got %q, %v", host, got, err)
		}
	}
}

// A secret opens no private address, also with mode on: those who may choose its hosts may not choose more.
func TestSecretsOpenPublicAddresses(t *testing.T) {
	for _, mode := range []atoll.NetworkMode{atoll.NetworkOn, atoll.NetworkEgress} {
		policy, err := NewPolicy(atoll.Network{Mode: mode, Allow: []string{"npm"}}, atoll.Secret{Name: "K", Placeholder: "placeholder-0123456789", Hosts: []string{"x.evil.example"}})
		if err != nil {
			t.Fatal(err)
		}
		ns := need(t)
		n, err := New(ns.Link(), Options{
			Policy: policy, Dial: world{"tcp 10.1.2.3:6379": serveTCP(t, echo)}.dial,
			Resolver: zone{"x.evil.example. 60 IN A 10.1.2.3", "registry.npmjs.org. 60 IN A 10.1.2.3"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"x.evil.example.", "registry.npmjs.org."} {
			ask(t, ns, "udp", question(name, dns.TypeA))
		}
		if c, err := dialIn(ns, "tcp", "10.1.2.3:6379"); err == nil {
			c.Close()
			t.Errorf("mode %s: the private address is open", mode)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// QUIC hides the name that it is for, so it does not pass where names are checked, and programs do not learn of it.
func TestQUICByName(t *testing.T) {
	var refused refusalList
	_, ns := open(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"good.example"}},
		Options{Dial: manyNames(t).dial, Resolver: manyZone, Report: refused.addEvent})
	ask(t, ns, "udp", question("good.example.", dns.TypeA))
	for _, qtype := range []uint16{dns.TypeHTTPS, dns.TypeSVCB} {
		if a := ask(t, ns, "udp", question("good.example.", qtype)); len(a.Answer) != 0 || a.Rcode != dns.RcodeSuccess {
			t.Errorf("%s: got %v, want no answers", dns.TypeToString[qtype], a)
		}
	}
	c := mustDialIn(t, ns, "udp", "1.2.3.4:443")
	_, _ = io.WriteString(c, "hello")
	if _, err := c.Read(make([]byte, 5)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("UDP to port 443: got %v, want connection refused", err)
	}
	if all := refused.takeAll(); !slices.ContainsFunc(all, func(r atoll.Refusal) bool { return r.Protocol == "udp" && strings.Contains(r.Reason, "QUIC") }) {
		t.Errorf("refused %+v, want UDP to port 443", all)
	}
	refused.takeAll()
	other := mustDialIn(t, ns, "udp", "1.2.3.4:9")
	roundTrip(t, other, "hello")
	_, _ = io.WriteString(other, "\xc3\x00\x00\x00\x01\x08hello")
	eventually(t, "QUIC on another port is refused", func() bool { return len(refused.takeAll()) == 1 })
	roundTrip(t, mustDialIn(t, ns, "udp", "1.2.3.4:9"), "hello")
}

// An address that is open as such is open for all names, and for what no name is known of.
func TestNamesAtOpenAddress(t *testing.T) {
	for name, nw := range map[string]atoll.Network{
		"listed": {Mode: atoll.NetworkEgress, Allow: []string{"1.2.3.4", "good.example"}},
		"public": {Mode: atoll.NetworkOn, Allow: []string{"good.example"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, ns := open(t, nw, Options{Dial: manyNames(t).dial, Resolver: manyZone})
			ask(t, ns, "udp", question("good.example.", dns.TypeA))
			if got, err := getPage(ns, "1.2.3.4:443", "https", "evil.example", "evil.example"); got != "host evil.example" || err != nil {
				t.Errorf("TLS: got %q, %v", got, err)
			}
			if got, err := getPage(ns, "1.2.3.4:80", "http", "", "evil.example"); got != "host evil.example" || err != nil {
				t.Errorf("HTTP: got %q, %v", got, err)
			}
			roundTrip(t, mustDialIn(t, ns, "udp", "1.2.3.4:443"), "hello")
		})
	}
}

// Close ends connections of HTTP, also those that wait: the server learns it.
func TestCloseNamed(t *testing.T) {
	asked, gone := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(gone)
	}))
	defer s.Close()
	n, ns := open(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"good.example"}},
		Options{Dial: world{"tcp 1.2.3.4:80": s.Listener.Addr().String()}.dial, Resolver: manyZone})
	ask(t, ns, "udp", question("good.example.", dns.TypeA))
	_, waiting := mustDialIn(t, ns, "tcp", "1.2.3.4:80"), mustDialIn(t, ns, "tcp", "1.2.3.4:80")
	if _, err := io.WriteString(waiting, "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	<-gone
	if got := n.conns.countConns(); got != 0 {
		t.Errorf("open connections: got %d, want 0", got)
	}
}
