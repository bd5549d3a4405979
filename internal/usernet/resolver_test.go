package usernet

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// serveZone runs a real DNS server, UDP and TCP on the same loopback port.
func serveZone(t *testing.T, handler dns.HandlerFunc) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d := &dnsServer{}
	d.startServer(&dns.Server{Listener: l, Handler: handler})
	d.startServer(&dns.Server{PacketConn: pc, Handler: handler})
	t.Cleanup(d.close)
	return l.Addr().String()
}

// resolverFor is a SystemResolver whose servers listen on other ports than 53.
func resolverFor(servers ...string) *SystemResolver {
	r := NewSystemResolver("/nonexistent")
	r.servers, r.checked = servers, time.Now().Add(time.Hour)
	return r
}

func TestSystemResolver(t *testing.T) {
	var byTCP atomic.Int32
	good := serveZone(t, func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		switch name := q.Question[0].Name; {
		case name == "none.example.":
			a.Rcode = dns.RcodeNameError
		case name == "many.example." && w.LocalAddr().Network() == "udp":
			a.Truncated = true
		default:
			if w.LocalAddr().Network() == "tcp" {
				byTCP.Add(1)
			}
			rr, _ := dns.NewRR(name + " 60 IN A 1.2.3.4")
			a.Answer = append(a.Answer, rr)
		}
		_ = w.WriteMsg(a)
	})
	failing := serveZone(t, func(w dns.ResponseWriter, q *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
	})
	lying := serveZone(t, func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		a.Question[0].Name = "other.example."
		_ = w.WriteMsg(a)
	})
	closed := closedPort(t)

	for _, tt := range []struct {
		name    string
		servers []string
		ask     string
		rcode   int
		answers int
		err     string
	}{
		{"answer", []string{good}, "a.example.", dns.RcodeSuccess, 1, ""},
		{"no such name", []string{good}, "none.example.", dns.RcodeNameError, 0, ""},
		{"truncated comes by tcp", []string{good}, "many.example.", dns.RcodeSuccess, 1, ""},
		{"the next server after one that fails", []string{failing, good}, "a.example.", dns.RcodeSuccess, 1, ""},
		{"the next server after one that is not there", []string{closed, good}, "a.example.", dns.RcodeSuccess, 1, ""},
		{"all fail", []string{failing, failing}, "a.example.", dns.RcodeServerFailure, 0, ""},
		{"an answer to another question", []string{lying}, "a.example.", 0, 0, "another question"},
		{"none is there", []string{closed}, "a.example.", 0, 0, "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := dns.Question{Name: tt.ask, Qtype: dns.TypeA, Qclass: dns.ClassINET}
			a, err := resolverFor(tt.servers...).Resolve(context.Background(), q, false)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, %v, want an error with %q", a, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if a.Rcode != tt.rcode || len(a.Answer) != tt.answers {
				t.Errorf("got %s with %d answers, want %s with %d", dns.RcodeToString[a.Rcode], len(a.Answer), dns.RcodeToString[tt.rcode], tt.answers)
			}
		})
	}
	if got := byTCP.Load(); got != 1 {
		t.Errorf("answers by tcp: got %d, want 1", got)
	}
}

// closedPort returns an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	return pc.LocalAddr().String()
}

func TestSystemResolverEndsWithContext(t *testing.T) {
	var cancel atomic.Value
	silent := serveZone(t, func(dns.ResponseWriter, *dns.Msg) { cancel.Load().(context.CancelFunc)() })
	fastest := time.Hour
	for try := 0; try < 5 && fastest >= tryTimeout; try++ { // a busy machine may be slow once
		ctx, end := context.WithCancel(context.Background())
		defer end()
		cancel.Store(end)
		start := time.Now()
		q := dns.Question{Name: "a.example.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
		if a, err := resolverFor(silent).Resolve(ctx, q, false); err == nil {
			t.Errorf("got %v from a server that is silent", a)
		}
		fastest = min(fastest, time.Since(start))
	}
	if fastest >= tryTimeout {
		t.Errorf("returned %s after it was asked, the end of its context notwithstanding", fastest)
	}
}

func TestSystemResolverReadsItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	r := NewSystemResolver(path)
	if _, err := r.serverAddresses(); err == nil {
		t.Error("no error without a file")
	}
	write := func(age time.Duration, servers ...string) {
		t.Helper()
		var b strings.Builder
		for _, s := range servers {
			fmt.Fprintf(&b, "nameserver %s\n", s)
		}
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		r.checked = time.Time{} // as if time had passed
	}
	write(2 * time.Hour)
	if _, err := r.serverAddresses(); err == nil {
		t.Error("no error without a server")
	}
	write(time.Hour, "127.0.0.53", "::1")
	if got, err := r.serverAddresses(); err != nil || fmt.Sprint(got) != "[127.0.0.53:53 [::1]:53]" {
		t.Errorf("got %v, %v", got, err)
	}
	write(time.Minute, "127.0.0.1")
	if got, err := r.serverAddresses(); err != nil || fmt.Sprint(got) != "[127.0.0.1:53]" {
		t.Errorf("after a change: got %v, %v", got, err)
	}
}
