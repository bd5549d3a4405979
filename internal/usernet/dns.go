package usernet

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
)

const dnsPort = 53

// dnsServer answers on the gateway's port 53, UDP and TCP.
type dnsServer struct {
	servers []*dns.Server
	wg      sync.WaitGroup
}

func (n *Network) startDNS() error {
	n.dns = &dnsServer{}
	slots := make(chan struct{}, maxDNSQueries)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
			return
		}
		n.serveDNS(w, q)
	})
	for _, gw := range []netip.Addr{Gateway.Addr(), Gateway6.Addr()} {
		proto := ipv4.ProtocolNumber
		if gw.Is6() {
			proto = ipv6.ProtocolNumber
		}
		addr := tcpip.FullAddress{NIC: nic, Addr: toTCPIP(gw), Port: dnsPort}
		l, err := gonet.ListenTCP(n.stack, addr, proto)
		if err != nil {
			return err
		}
		n.dns.startServer(&dns.Server{Listener: &dnsListener{l, n}, Handler: handler, IdleTimeout: func() time.Duration { return 10 * time.Second }})
		pc, err := gonet.DialUDP(n.stack, &addr, nil, proto)
		if err != nil {
			return err
		}
		n.dns.startServer(&dns.Server{PacketConn: pc, Handler: handler, UDPSize: dns.DefaultMsgSize})
	}
	return nil
}

// A dnsListener counts its connections towards Options.MaxConns.
type dnsListener struct {
	net.Listener
	n *Network
}

// Accept closes the connections beyond the limit.
func (l *dnsListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if place := l.n.admitConn(c.LocalAddr().(*net.TCPAddr).AddrPort()); place != nil {
			// The server's Shutdown ends reads, but no write to a sandbox that
			// does not read its answers.
			keep := context.AfterFunc(l.n.ctx, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
			return &countedConn{c, sync.OnceFunc(func() {
				keep()
				l.n.conns.removeConn(place)
			})}, nil
		}
		_ = c.Close()
	}
}

// startServer returns when s can be shut down.
func (d *dnsServer) startServer(s *dns.Server) {
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	d.servers = append(d.servers, s)
	d.wg.Go(func() { _ = s.ActivateAndServe() })
	<-started
}

// close waits for queries that are being answered; they end with Network.ctx.
func (d *dnsServer) close() {
	for _, s := range d.servers {
		_ = s.Shutdown()
	}
	d.wg.Wait()
}

func (n *Network) serveDNS(w dns.ResponseWriter, q *dns.Msg) {
	ctx, cancel := context.WithTimeout(n.ctx, queryTimeout)
	defer cancel()
	a := n.answerQuery(ctx, q)
	a.Compress = true
	if _, ok := w.LocalAddr().(*net.UDPAddr); ok {
		size := dns.MinMsgSize
		if opt := q.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		a.Truncate(size)
	}
	if err := w.WriteMsg(a); err != nil {
		n.opts.Log.Debug("dns", "err", err)
	}
}

// answerQuery passes a query that the policy allows on to the resolver. Other names do not exist
// (NXDOMAIN): on REFUSED some stub resolvers try again until they time out.
func (n *Network) answerQuery(ctx context.Context, q *dns.Msg) *dns.Msg {
	if q.Opcode != dns.OpcodeQuery {
		return newReply(q, dns.RcodeNotImplemented)
	}
	if len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
		return newReply(q, dns.RcodeFormatError)
	}
	question := q.Question[0]
	policy, name := n.policy.Load(), plainName(question.Name)
	event := atoll.NetworkEvent{Protocol: "dns", Host: name, Verdict: atoll.NetworkAllowed, Rule: policy.rules.FindEntry(name, 0)}
	defer func() { n.reportEvent(event) }()
	if reason := policy.checkResolve(name); reason != "" {
		event.Verdict, event.Rule, event.Reason = atoll.NetworkRefused, policy.rules.DeniedHost(name, 0), reason
		if reason == egress.NotAllowed && egress.ValidHost(name) {
			event.Opens = name
		}
		a := newReply(q, dns.RcodeNameError)
		if opt := a.IsEdns0(); opt != nil {
			opt.Option = append(opt.Option, &dns.EDNS0_EDE{
				InfoCode:  dns.ExtendedErrorCodeFiltered,
				ExtraText: n.explainName(event),
			})
		}
		return a
	}
	began := time.Now()
	got, err := n.opts.Resolver.Resolve(ctx, question, dnssecOK(q))
	event.Duration = atoll.Duration(time.Since(began))
	if err != nil {
		event.Verdict, event.Reason = atoll.NetworkFailed, explainDial(err)
		n.opts.Log.Debug("resolve", "name", question.Name, "err", err)
		return newReply(q, dns.RcodeServerFailure)
	}
	n.rememberAnswer(policy, question.Name, got.Answer)
	a := newReply(q, got.Rcode)
	a.AuthenticatedData, a.RecursionAvailable = got.AuthenticatedData, true
	if policy.checksNames() && (question.Qtype == dns.TypeHTTPS || question.Qtype == dns.TypeSVCB) {
		return a // without answers: they lead to addresses that this server did not give, to QUIC, and to TLS with hidden names
	}
	a.Answer, a.Ns, a.Extra = got.Answer, got.Ns, append(withoutOPT(got.Extra), a.Extra...)
	return a
}

// explainName returns why a name is refused, for programs in the sandbox.
func (n *Network) explainName(e atoll.NetworkEvent) string {
	text := "Atoll refused this name: " + e.Reason
	if e.Opens != "" && n.opts.Advise != nil {
		text += ". " + n.opts.Advise(e.Opens)
	}
	return text
}

// plainName returns a name of a DNS message, in which control characters are escaped already, as
// people write it.
func plainName(name string) string {
	return cmp.Or(strings.TrimSuffix(strings.ToLower(name), "."), ".")
}

// rememberAnswer records the addresses at the end of the chain of aliases that begins at name.
func (n *Network) rememberAnswer(policy *Policy, name string, answer []dns.RR) {
	t, _ := policy.lookUpHost(name, 0)
	listed := t != unlisted && egress.ValidHost(plainName(name)) // or servers could take a part of it for a name
	owner := dns.CanonicalName(name)
	for hops := 0; hops <= len(answer); hops++ {
		alias := ""
		for _, rr := range answer {
			if dns.CanonicalName(rr.Header().Name) != owner {
				continue
			}
			ttl := time.Duration(rr.Header().Ttl) * time.Second
			switch rr := rr.(type) {
			case *dns.A:
				if addr, ok := netip.AddrFromSlice(rr.A); ok {
					n.names.addAnswer(addr, plainName(name), listed, ttl)
				}
			case *dns.AAAA:
				if addr, ok := netip.AddrFromSlice(rr.AAAA); ok {
					n.names.addAnswer(addr, plainName(name), listed, ttl)
				}
			case *dns.CNAME:
				alias = dns.CanonicalName(rr.Target)
			}
		}
		if alias == "" {
			return
		}
		owner = alias
	}
}

// newReply begins an answer to q, with EDNS if q has it.
func newReply(q *dns.Msg, rcode int) *dns.Msg {
	a := new(dns.Msg).SetRcode(q, rcode)
	a.RecursionAvailable = true
	if opt := q.IsEdns0(); opt != nil {
		a.SetEdns0(dns.DefaultMsgSize, opt.Do())
	}
	return a
}

func dnssecOK(q *dns.Msg) bool {
	opt := q.IsEdns0()
	return opt != nil && opt.Do()
}

func withoutOPT(rrs []dns.RR) []dns.RR {
	kept := make([]dns.RR, 0, len(rrs))
	for _, rr := range rrs {
		if rr.Header().Rrtype != dns.TypeOPT {
			kept = append(kept, rr)
		}
	}
	return kept
}
