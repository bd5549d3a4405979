package usernet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gateway"
)

// handleTCP serves one connection that the sandbox requests. It dials outwards first and answers
// the sandbox afterwards, so that a port which is closed outside looks closed inside.
func (n *Network) handleTCP(r *tcp.ForwarderRequest) {
	if !n.beginWork() {
		r.Complete(true)
		return
	}
	defer n.wg.Done()

	c := &tcpConn{Network: n, policy: n.policy.Load(), began: time.Now()}
	c.to = n.findDestination(fromTCPIP(r.ID().LocalAddress, r.ID().LocalPort))
	c.opened = n.checkAddress(c.policy, c.to)
	if c.opened.open == closed {
		n.reportRefusal("tcp", n.names.findName(c.to.Addr()), c.to.AddrPort, c.opened)
		r.Complete(true)
		return
	}
	place := n.admitConn(c.to.AddrPort)
	if place == nil {
		r.Complete(true)
		return
	}
	defer n.conns.removeConn(place)
	out, err := n.dialTCP(n.ctx, c.to.AddrPort)
	if err != nil {
		n.reportFailure("tcp", c.to.AddrPort, c.opened, err)
		r.Complete(true)
		return
	}
	defer out.Close()

	var wq waiter.Queue
	ep, problem := r.CreateEndpoint(&wq)
	r.Complete(false)
	if problem != nil {
		resetConn(out)
		return
	}
	defer ep.Close()
	keepAlive(ep)
	c.guest = &guestConn{TCPConn: gonet.NewTCPConn(&wq, ep), ep: ep, wq: &wq, place: place}
	c.out = out
	reset := c.guest.Reset
	place.end.Store(&reset)
	joinConns(n.ctx, c.guest, out, c.serveConn)
}

// A tcpConn is a connection of the sandbox.
type tcpConn struct {
	*Network
	policy *Policy // when it began
	to     destination
	opened verdict
	began  time.Time
	guest  *guestConn
	out    net.Conn
}

// serveConn serves the connection until its end.
func (c *tcpConn) serveConn(ctx context.Context, fail func()) {
	event := newEvent("tcp", c.names.findName(c.to.Addr()), c.to.AddrPort)
	event.Rule = c.opened.rule
	if c.opened.open != forAll || c.policy.rules.NamesHosts() {
		c.serveNamed(ctx, &event, fail)
	} else if c.watchPolicy(func(p *Policy, open opening) bool { return open == forAll && !p.rules.NamesHosts() }) {
		spliceConns(c.guest, c.out, c.guest, fail)
	} else {
		c.refuseConn(&event, changed, fail)
	}
	if event.Verdict == atoll.NetworkAllowed {
		event.Duration = atoll.Duration(time.Since(c.began))
		event.Sent, event.Received = atoll.Bytes(c.guest.sent.Load()), atoll.Bytes(c.guest.received.Load())
		c.reportEvent(event)
	}
}

// changed is the verdict about a connection that the policy opened, and another policy, since then, does not.
var changed = verdict{reason: "the rules of the network have changed"}

// watchPolicy has the connection end when mayGoOn is false for another policy and how that opens the destination. It reports
// whether the connection may go on by the policy of now.
func (c *tcpConn) watchPolicy(mayGoOn func(p *Policy, open opening) bool) bool {
	check := func() bool {
		p := c.Network.policy.Load()
		return p == c.policy || mayGoOn(p, c.checkAddress(p, c.to).open)
	}
	c.guest.place.check.Store(&check)
	return check()
}

// refuseConn reports that the connection is refused, and resets it.
func (c *tcpConn) refuseConn(event *atoll.NetworkEvent, v verdict, fail func()) {
	event.Verdict = atoll.NetworkRefused
	c.reportRefusal(event.Protocol, event.Host, c.to.AddrPort, v)
	fail()
}

// serveNamed serves a connection for which it matters what it says. It completes the event, whose verdict is empty if others report the
// connection.
func (c *tcpConn) serveNamed(ctx context.Context, event *atoll.NetworkEvent, fail func()) {
	if !c.watchPolicy(func(_ *Policy, open opening) bool { return open == c.opened.open }) {
		c.refuseConn(event, changed, fail)
		return
	}
	head, err := gateway.ReadHead(c.guest, c.out)
	if err != nil {
		event.Verdict, event.Reason = atoll.NetworkFailed, err.Error()
		c.reportEvent(*event)
		fail()
		return
	}
	from := io.Reader(c.guest)
	mayGoOn := func(_ *Policy, open opening) bool { return open >= forNames }
	v, port := verdict{open: c.opened.open}, int(c.to.Port())
	switch head.Protocol {
	case gateway.HTTP:
		c.serveRequests(event, func() { c.gateway.ServeHTTP(ctx, c.guest, head, c.out, c.newTarget()) }, fail)
		return
	case gateway.TLS:
		event.Protocol, event.Host = "tls", cmp.Or(head.ServerName, event.Host)
		v = c.checkName(c.policy, head.ServerName, c.to, c.opened.open, false)
		if v.open != closed && c.policy.rules.Inspects(head.ServerName, port) {
			c.serveRequests(event, func() { c.gateway.ServeTLS(ctx, c.guest, head, c.out, c.newTarget()) }, fail)
			return
		}
		if v.open == forSome { // no rule makes that possible
			v = onlyRequests
		}
		mayGoOn = func(p *Policy, open opening) bool {
			return open != closed && c.checkName(p, head.ServerName, c.to, open, true).open != closed && !p.rules.Inspects(head.ServerName, port)
		}
	default:
		if c.opened.open == forSome {
			v = onlyRequests
		}
		if head.Protocol == gateway.Unclear {
			from = head.Watch(c.guest)
		}
	}
	if v.open != closed && !c.watchPolicy(mayGoOn) {
		v = changed
	}
	if v.open == closed {
		if head.Protocol == gateway.TLS {
			event.Host = head.ServerName
		}
		c.refuseConn(event, v, fail)
		return
	}
	event.Rule = cmp.Or(v.rule, event.Rule)
	_, err = c.out.Write(head.Client)
	if err == nil {
		_, err = c.guest.Write(head.Server)
	}
	if err != nil {
		fail()
		return
	}
	spliceConns(c.guest, c.out, from, fail)
}

// onlyRequests is the verdict about a connection that is not of HTTP.
var onlyRequests = verdict{reason: "--allow has requests of HTTP to this host only"}

// serveRequests has the gateway serve the connection, which reports the requests.
func (c *tcpConn) serveRequests(event *atoll.NetworkEvent, serve func(), fail func()) {
	if !c.watchPolicy(func(_ *Policy, open opening) bool { return open != closed }) {
		c.refuseConn(event, changed, fail)
		return
	}
	event.Verdict = ""
	serve()
}

// newTarget returns the target of the requests of the connection.
func (c *tcpConn) newTarget() gateway.Target {
	check := func(host string, known bool) verdict {
		p, to := c.Network.policy.Load(), c.to
		if !known {
			to = c.findDestination(c.to.AddrPort)
		}
		v := c.checkAddress(p, to)
		if v.open == closed && known {
			return v
		}
		return c.checkName(p, host, to, v.open, known)
	}
	return gateway.Target{
		Addr: c.to.AddrPort,
		CheckHost: func(host string) (reason, opens string) {
			v := check(host, false)
			return v.reason, v.opens
		},
		StillAllowed: func(host string) bool { return check(host, true).open != closed },
	}
}

// dialMore connects to dst for a connection that has been admitted, and counts that as one more.
func (n *Network) dialMore(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
	place := n.admitConn(dst)
	if place == nil {
		return nil, errors.New("too many connections")
	}
	out, err := n.dialTCP(ctx, dst)
	if err != nil {
		n.conns.removeConn(place)
		return nil, err
	}
	return &countedConn{out, sync.OnceFunc(func() { n.conns.removeConn(place) })}, nil
}

// dialHost connects to a host to which a rule redirects requests, and counts the connection. It is not for the sandbox to choose, so the
// policy does not matter.
func (n *Network) dialHost(ctx context.Context, address string) (net.Conn, error) {
	place := n.conns.addConn(n.opts.MaxConns, n.opts.ConnIdle)
	if place == nil {
		return nil, errors.New("too many connections")
	}
	ctx, cancel := context.WithTimeout(ctx, n.opts.DialTimeout)
	defer cancel()
	out, err := n.opts.Dial(ctx, "tcp", address)
	if err != nil {
		n.conns.removeConn(place)
		return nil, err
	}
	return &countedConn{out, sync.OnceFunc(func() { n.conns.removeConn(place) })}, nil
}

// A countedConn calls leave when it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

func (c *countedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// dialTCP connects to dst, which is allowed.
func (n *Network) dialTCP(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.opts.DialTimeout)
	defer cancel()
	out, err := n.opts.Dial(ctx, "tcp", dst.String())
	if err != nil {
		n.opts.Log.Debug("dial", "network", "tcp", "address", dst.String(), "err", err)
	}
	return out, err
}

// admitConn counts one more connection. If that is not possible, it reports that and returns nil; otherwise the caller has to call
// n.conns.removeConn.
func (n *Network) admitConn(dst netip.AddrPort) *openConn {
	c := n.conns.addConn(n.opts.MaxConns, n.opts.ConnIdle)
	if c == nil {
		n.reportRefusal("tcp", n.names.findName(dst.Addr()), dst, verdict{reason: fmt.Sprintf("more than %d connections at once", n.opts.MaxConns)})
	}
	return c
}

// keepAlive makes the stack detect that the sandbox's side is gone.
func keepAlive(ep tcpip.Endpoint) {
	idle := tcpip.KeepaliveIdleOption(keepaliveIdle)
	interval := tcpip.KeepaliveIntervalOption(keepaliveInterval)
	_ = ep.SetSockOpt(&idle)
	_ = ep.SetSockOpt(&interval)
	_ = ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepaliveCount)
	ep.SocketOptions().SetKeepAlive(true)
}

// guestConn is the sandbox's end of a connection.
type guestConn struct {
	*gonet.TCPConn
	ep    tcpip.Endpoint
	wq    *waiter.Queue
	place *openConn
	ended atomic.Bool // by us

	sent, received atomic.Int64 // bytes, by the sandbox
}

func (c *guestConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.place.markUsed()
	c.sent.Add(int64(n))
	return n, err
}

func (c *guestConn) Write(p []byte) (int, error) {
	c.place.markUsed()
	n, err := c.TCPConn.Write(p)
	c.received.Add(int64(n))
	return n, err
}

// CloseWrite ends the data to the sandbox.
func (c *guestConn) CloseWrite() error {
	c.ended.Store(true)
	return c.TCPConn.CloseWrite()
}

// Reset ends the connection with a RST.
func (c *guestConn) Reset() { c.ep.Abort() }

// onFailure calls f, which must not wait, when the connection has been reset or the sandbox's side
// is gone; maybe more than once, and not after undo.
func (c *guestConn) onFailure(f func()) (undo func()) {
	check := func(waiter.EventMask) {
		if c.hasFailed() {
			f()
		}
	}
	e := waiter.NewFunctionEntry(waiter.EventHUp, check)
	c.wq.EventRegister(&e)
	check(0) // it may have come before
	return func() { c.wq.EventUnregister(&e) }
}

// hasFailed reports whether the connection is over before both sides ended it.
func (c *guestConn) hasFailed() bool {
	switch tcp.EndpointState(c.ep.State()) {
	case tcp.StateError:
		return true
	case tcp.StateClose: // a reset leads here as well after the sandbox has ended its side
		return !c.ended.Load()
	}
	return false
}

// joinConns calls serve, which returns when both connections have ended. A failure of the guest's resets both, as one connection would be,
// and so do a call of fail and the end of ctx. The context of serve ends then.
func joinConns(ctx context.Context, guest *guestConn, out net.Conn, serve func(ctx context.Context, fail func())) {
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	// A reset wakes all reads and writes, whichever end they wait for.
	done := make(chan struct{})
	keep := context.AfterFunc(ctx, func() {
		defer close(done)
		resetConn(guest)
		resetConn(out)
	})
	defer func() {
		if !keep() {
			<-done
		}
	}()
	// A read of the remote does not see that the sandbox ends the connection.
	defer guest.onFailure(fail)()
	serve(ctx, fail)
}

// spliceConns copies both ways until both have ended, what the guest says by reading from. It passes the end of one direction on as the end
// of that direction, and calls fail if one fails.
func spliceConns(guest, out net.Conn, from io.Reader, fail func()) {
	one := func(dst net.Conn, src io.Reader) {
		if copyData(dst, src) != nil {
			fail()
			return
		}
		if c, ok := dst.(interface{ CloseWrite() error }); ok && c.CloseWrite() != nil {
			fail()
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { one(guest, out) })
	one(out, from)
	wg.Wait()
}

// resetConn closes c so that the other side sees a RST rather than an end.
func resetConn(c net.Conn) {
	switch c := c.(type) {
	case *guestConn:
		c.Reset()
		return
	case *net.TCPConn:
		_ = c.SetLinger(0)
	}
	_ = c.Close()
	_ = c.SetDeadline(time.Unix(1, 0)) // for a Conn whose Close leaves a Read waiting
}

// An idle connection waits with a small buffer, a busy one works with a large
// one: a thousand idle connections must not hold 128 MiB.
const (
	smallBuffer = 2 << 10
	largeBuffer = 64 << 10
)

var largeBuffers = sync.Pool{New: func() any {
	b := make([]byte, largeBuffer)
	return &b
}}

// copyData copies src to dst until src ends, which is not an error.
func copyData(dst io.Writer, src io.Reader) error {
	small := make([]byte, smallBuffer)
	var large *[]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for {
		b := small
		if large != nil {
			b = *large
		}
		n, err := src.Read(b)
		if n > 0 {
			if _, err := dst.Write(b[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case large == nil && n == smallBuffer:
			large = largeBuffers.Get().(*[]byte)
		case large != nil && n < smallBuffer:
			largeBuffers.Put(large)
			large = nil
		}
	}
}
