package usernet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// zone is a Resolver over records in a zone file's notation.
type zone []string

func (z zone) Resolve(_ context.Context, q dns.Question, _ bool) (*dns.Msg, error) {
	a := &dns.Msg{Question: []dns.Question{q}}
	a.Rcode = dns.RcodeNameError
	for name := q.Name; name != ""; {
		owner := name
		name = ""
		for _, line := range z {
			rr, err := dns.NewRR(line)
			if err != nil {
				return nil, err
			}
			if !strings.EqualFold(rr.Header().Name, owner) {
				continue
			}
			a.Rcode = dns.RcodeSuccess
			if cname, ok := rr.(*dns.CNAME); ok {
				name = cname.Target
				a.Answer = append(a.Answer, rr)
			} else if rr.Header().Rrtype == q.Qtype {
				a.Answer = append(a.Answer, rr)
			}
		}
	}
	return a, nil
}

// ask sends q to the gateway from inside.
func ask(tb testing.TB, ns *Namespace, network string, q *dns.Msg) *dns.Msg {
	tb.Helper()
	conn := mustDialIn(tb, ns, network, "192.0.0.1:53")
	defer conn.Close()
	a, _, err := (&dns.Client{Net: network, UDPSize: dns.MaxMsgSize, Timeout: testenv.Scale(10 * time.Second)}).ExchangeWithConn(q, &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize})
	if err != nil {
		tb.Fatalf("%s query: %v", network, err)
	}
	return a
}

func question(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// Connections to the server cost what others do, and are limited with them.
func TestDNSConnectionsAreLimited(t *testing.T) {
	said, log := newTally()
	n, ns := open(t, on, Options{Log: log, MaxConns: 2, Resolver: zone{"a.example. 60 IN A 1.2.3.4"}})
	q := question("a.example.", dns.TypeA)
	idle := []net.Conn{mustDialIn(t, ns, "tcp", "192.0.0.1:53"), mustDialIn(t, ns, "tcp", "[fd61:746f:6c6c::1]:53")}
	for _, c := range idle { // which are kept for a while once they have asked
		if _, _, err := new(dns.Client).ExchangeWithConn(q, &dns.Conn{Conn: c}); err != nil {
			t.Fatal(err)
		}
	}
	third := mustDialIn(t, ns, "tcp", "192.0.0.1:53")
	if _, err := third.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the third of two: %v, want it closed", err)
	}
	if conns, refusals := n.conns.countConns(), said.of("refused"); conns != 2 || refusals != 1 {
		t.Errorf("%d connections and %d refusals, want 2 and 1", conns, refusals)
	}
	if a := ask(t, ns, "udp", q); len(a.Answer) != 1 {
		t.Errorf("by UDP: %v", a)
	}
	for _, c := range idle {
		c.Close()
	}
	eventually(t, "no connection", func() bool { return n.conns.countConns() == 0 })
	if a := ask(t, ns, "tcp", q); len(a.Answer) != 1 {
		t.Errorf("by TCP: %v", a)
	}
}

func TestDNS(t *testing.T) {
	var many zone
	for i := range 200 {
		many = append(many, fmt.Sprintf("many.example. 60 IN A 1.2.3.%d", i))
	}
	z := append(zone{"a.example. 60 IN A 1.2.3.4", "www.example. 60 IN CNAME a.example.", "a.example. 60 IN AAAA 2606:4700::1"}, many...)
	_, ns := open(t, on, Options{Resolver: z})

	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			a := ask(t, ns, network, question("www.example.", dns.TypeA))
			if len(a.Answer) != 2 || a.Answer[1].(*dns.A).A.String() != "1.2.3.4" || !a.RecursionAvailable {
				t.Errorf("www.example: got %v", a)
			}
			if a := ask(t, ns, network, question("a.example.", dns.TypeAAAA)); len(a.Answer) != 1 {
				t.Errorf("AAAA: got %v", a)
			}
			if a := ask(t, ns, network, question("none.example.", dns.TypeA)); a.Rcode != dns.RcodeNameError {
				t.Errorf("none.example: got %s, want NXDOMAIN", dns.RcodeToString[a.Rcode])
			}
		})
	}
	t.Run("truncated", func(t *testing.T) {
		a := ask(t, ns, "udp", question("many.example.", dns.TypeA))
		if a.Compress = true; !a.Truncated || a.Len() > dns.MinMsgSize {
			t.Errorf("udp: got %d bytes, truncated %t; want at most 512, truncated", a.Len(), a.Truncated)
		}
		if a := ask(t, ns, "tcp", question("many.example.", dns.TypeA)); a.Truncated || len(a.Answer) != 200 {
			t.Errorf("tcp: got %d answers, truncated %t; want 200, whole", len(a.Answer), a.Truncated)
		}
	})
	t.Run("edns", func(t *testing.T) {
		q := question("many.example.", dns.TypeA).SetEdns0(8192, false)
		if a := ask(t, ns, "udp", q); a.Truncated || len(a.Answer) != 200 || a.IsEdns0() == nil {
			t.Errorf("got %d answers, truncated %t; want 200, whole, with EDNS", len(a.Answer), a.Truncated)
		}
	})
	t.Run("odd questions", func(t *testing.T) {
		q := question("a.example.", dns.TypeA)
		q.Question[0].Qclass = dns.ClassCHAOS
		if a := ask(t, ns, "udp", q); a.Rcode != dns.RcodeFormatError {
			t.Errorf("class CHAOS: got %s, want FORMERR", dns.RcodeToString[a.Rcode])
		}
		q = question("a.example.", dns.TypeA)
		q.Opcode = dns.OpcodeUpdate
		if a := ask(t, ns, "tcp", q); a.Rcode != dns.RcodeNotImplemented {
			t.Errorf("update: got %s, want NOTIMP", dns.RcodeToString[a.Rcode])
		}
	})
}

// failing is a Resolver that cannot.
type failing struct{}

func (failing) Resolve(context.Context, dns.Question, bool) (*dns.Msg, error) {
	return nil, errors.New("no server")
}

func TestDNSServerFailure(t *testing.T) {
	_, ns := open(t, on, Options{Resolver: failing{}})
	if a := ask(t, ns, "udp", question("a.example.", dns.TypeA)); a.Rcode != dns.RcodeServerFailure {
		t.Errorf("got %s, want SERVFAIL", dns.RcodeToString[a.Rcode])
	}
}

// With egress a name that is not listed does not exist, an address is open
// while it is the answer for one that is, and not before.
func TestEgress(t *testing.T) {
	z := zone{
		"www.example.com. 60 IN CNAME cdn.example.net.",
		"cdn.example.net. 60 IN A 1.2.3.4",
		"other.example.net. 60 IN A 1.2.3.5",
		"a.b.wild.example. 60 IN A 1.2.3.6",
		"wild.example. 60 IN A 1.2.3.7",
		"*.www.example.com. 60 IN A 1.2.3.8",
	}
	srv := serveTCP(t, echo)
	w := world{}
	for _, a := range []string{"1.2.3.4:80", "1.2.3.6:80", "5.5.5.5:80"} {
		w["tcp "+a] = srv
	}
	nw := atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"www.example.com", "*.wild.example", "5.5.5.0/24"}}
	said, log := newTally()
	_, ns := open(t, nw, Options{Log: log, Resolver: z, Dial: w.dial})

	refused := func(address string) {
		t.Helper()
		if _, err := dialIn(ns, "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: got %v, want connection refused", address, err)
		}
	}
	opened := func(address string) {
		t.Helper()
		roundTrip(t, mustDialIn(t, ns, "tcp", address), "hello")
	}
	resolve := func(name string, want int) {
		t.Helper()
		if a := ask(t, ns, "udp", question(name, dns.TypeA)); a.Rcode != want {
			t.Errorf("%s: got %s, want %s", name, dns.RcodeToString[a.Rcode], dns.RcodeToString[want])
		}
	}

	opened("5.5.5.5:80")
	refused("1.2.3.4:80") // not resolved yet
	resolve("www.example.com.", dns.RcodeSuccess)
	opened("1.2.3.4:80")
	resolve("a.b.wild.example.", dns.RcodeSuccess)
	opened("1.2.3.6:80")
	for _, name := range []string{"cdn.example.net.", "other.example.net.", "wild.example.", "x.www.example.com."} {
		resolve(name, dns.RcodeNameError)
	}
	for _, address := range []string{"1.2.3.5:80", "1.2.3.7:80", "8.8.8.8:53"} {
		refused(address)
	}

	a := ask(t, ns, "udp", question("other.example.net.", dns.TypeA).SetEdns0(1232, false))
	if opt := a.IsEdns0(); opt == nil || len(opt.Option) != 1 || opt.Option[0].Option() != dns.EDNS0EDE {
		t.Errorf("a refused name's answer does not say why: %v", a)
	}
	if said.of("refused") == 0 {
		t.Error("refusals are not logged")
	}
}

// A listed name that turns to a refused address opens nothing by it, and an
// answer that carries the address of another name gives it no trust.
func TestRebinding(t *testing.T) {
	z := zone{
		"evil.example. 1 IN A 169.254.169.254",
		"evil.example. 1 IN A 127.0.0.1",
		"evil.example. 1 IN A 192.0.0.1",
		"evil.example. 1 IN AAAA ::ffff:10.0.0.1",
		"sub.wild.example. 1 IN A 10.0.0.2",
		"db.example. 60 IN A 10.0.0.5",
		"db.example. 60 IN CNAME db.internal.",
		"unlisted.example. 60 IN A 10.0.0.6",
	}
	srv := serveTCP(t, echo)
	dialled := make(chan string, 10)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled <- address
		return (&net.Dialer{}).DialContext(ctx, network, srv)
	}
	for _, tt := range []struct {
		mode  atoll.NetworkMode
		allow []string
		open  []string
	}{
		{atoll.NetworkOn, nil, nil},
		{atoll.NetworkOn, []string{"evil.example", "db.example"}, []string{"10.0.0.1:80", "10.0.0.5:80"}},
		{atoll.NetworkOn, []string{"*.wild.example"}, []string{"10.0.0.2:80"}},
		{atoll.NetworkEgress, []string{"evil.example", "*.wild.example"}, []string{"10.0.0.1:80"}},
	} {
		t.Run(fmt.Sprint(tt.mode, tt.allow), func(t *testing.T) {
			_, ns := open(t, atoll.Network{Mode: tt.mode, Allow: tt.allow}, Options{Resolver: z, Dial: dial})
			for _, name := range []string{"evil.example.", "sub.wild.example.", "db.example.", "unlisted.example."} {
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
					ask(t, ns, "udp", question(name, qtype))
				}
			}
			open := map[string]bool{}
			for _, a := range tt.open {
				open[a] = true
			}
			for _, a := range []string{
				"169.254.169.254:80", "192.0.0.1:80", "[64:ff9b::a9fe:a9fe]:80",
				"10.0.0.1:80", "10.0.0.2:80", "10.0.0.5:80", "10.0.0.6:80",
			} {
				_, err := dialIn(ns, "tcp", a)
				if got := err == nil; got != open[a] {
					t.Errorf("%s: open %t (%v), want %t", a, got, err, open[a])
				}
				if err == nil {
					<-dialled
				}
			}
			if len(dialled) > 0 {
				t.Errorf("dialled %s, which is refused", <-dialled)
			}
		})
	}
}
