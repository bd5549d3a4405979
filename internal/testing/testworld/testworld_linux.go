// Package testworld runs a test in a world of its own: network and mount namespaces with a server of DNS, and one of HTTPS that this
// machine trusts there, for all names below "example".
package testworld

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/gateway"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Address is the address of all names. It belongs to this machine in the world, so a policy has to list it.
const Address = "93.184.216.34"

// A World has what the server got.
type World struct {
	mu       sync.Mutex
	requests []string     // guarded by mu
	handler  http.Handler // guarded by mu
}

// Handle passes all later requests to h, which Requests then does not return. nil ends that.
func (w *World) Handle(h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handler = h
}

// Requests returns the requests that the server got since the last call: method, path and header, and the body.
func (w *World) Requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.requests = nil }()
	return w.requests
}

// Enter runs the test again in a process that is in a new world, and returns that world there. In the first process, it returns nil
// when the other has ended.
func Enter(t *testing.T) *World {
	t.Helper()
	if !testenv.InOwnProcess(t, unix.CLONE_NEWNET) {
		return nil
	}
	return newWorld(t)
}

func newWorld(t *testing.T) *World {
	t.Helper()
	w := &World{}
	authority, err := gateway.OpenAuthority(t.TempDir())
	if err == nil {
		err = errors.Join(bringUp(), coverFiles(t.TempDir(), authority))
	}
	if err != nil {
		t.Fatal(err)
	}
	serveDNS(t)
	for port, config := range map[string]*tls.Config{"80": nil, "443": {GetCertificate: authority.GetCertificate}} {
		w.serveHTTP(t, port, config)
	}
	return w
}

// bringUp gives the network its address.
func bringUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(Address + "/32")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(lo, addr)
}

// coverFiles makes this process, and all that it starts, ask the server of DNS and trust the authority.
func coverFiles(dir string, authority *gateway.Authority) error {
	for name, text := range map[string]string{
		"/etc/resolv.conf":                   "nameserver 127.0.0.1\n",
		"/etc/ssl/certs/ca-certificates.crt": string(authority.Certificate()),
	} {
		file := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", name, err)
		}
	}
	return nil
}

func serveDNS(t *testing.T) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		if name := q.Question[0].Name; q.Question[0].Qtype == dns.TypeA {
			rr, err := dns.NewRR(name + " 60 IN A " + Address)
			if err == nil {
				a.Answer = append(a.Answer, rr)
			}
		}
		_ = w.WriteMsg(a)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ActivateAndServe()
	}()
	t.Cleanup(func() {
		pc.Close()
		<-done
	})
}

// serveHTTP answers each request with its own text, or has the handler answer it.
func (w *World) serveHTTP(t *testing.T, port string, config *tls.Config) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(Address, port))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		handler := w.handler
		w.mu.Unlock()
		if handler != nil {
			handler.ServeHTTP(rw, r)
			return
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s %s%s\n", r.Method, r.Host, r.RequestURI)
		_ = r.Header.Write(&b)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		b.WriteString("\n" + string(body))
		w.mu.Lock()
		w.requests = append(w.requests, b.String())
		w.mu.Unlock()
		fmt.Fprintf(rw, "%s %s%s\n", r.Method, r.Host, r.RequestURI)
	}))
	s.Listener.Close()
	s.Listener, s.TLS, s.EnableHTTP2 = l, config, true
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if config == nil {
		s.Start()
	} else {
		s.StartTLS()
	}
	t.Cleanup(s.Close)
}
