package usernet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
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

	dst := fromTCPIP(r.ID().LocalAddress, r.ID().LocalPort)
	open := n.checkAddress("tcp", dst)
	if open == closed {
		r.Complete(true)
		return
	}
	place := n.admitConn(dst)
	if place == nil {
		r.Complete(true)
		return
	}
	defer n.conns.removeConn(place)
	out, err := n.dialTCP(n.ctx, dst)
	if err != nil {
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
	guest := &guestConn{TCPConn: gonet.NewTCPConn(&wq, ep), ep: ep, wq: &wq, place: place}
	reset := guest.Reset
	place.end.Store(&reset)
	joinConns(n.ctx, guest, out, func(ctx context.Context, fail func()) {
		if open == forAll && !n.opts.Policy.rules.NamesHosts() {
			spliceConns(guest, out, guest, fail)
		} else if err := n.serveNamed(ctx, guest, out, dst, open, fail); err != nil {
			n.opts.Log.Debug("head", "address", dst.String(), "err", err)
			fail()
		}
	})
}

// serveNamed serves a connection for which it matters what it says. It fails if the connection must not go on, or cannot begin.
func (n *Network) serveNamed(ctx context.Context, guest *guestConn, out net.Conn, dst netip.AddrPort, open opening, fail func()) error {
	head, err := gateway.ReadHead(guest, out)
	if err != nil {
		return err
	}
	from := io.Reader(guest)
	to := gateway.Target{Addr: dst, CheckHost: func(host string) string { return n.checkName(host, dst, open) }}
	switch head.Protocol {
	case gateway.HTTP:
		n.gateway.ServeHTTP(ctx, guest, head, out, to)
		return nil
	case gateway.TLS:
		err = n.checkServerName(head.ServerName, dst, open)
		if err == nil && n.opts.Policy.rules.Inspects(head.ServerName, int(dst.Port())) {
			n.gateway.ServeTLS(ctx, guest, head, out, to)
			return nil
		}
	default:
		if open == forSome {
			err = n.refuseHost("tcp", n.names.findName(dst.Addr()), dst, "--allow has requests of HTTP to this host only")
		}
		if head.Protocol == gateway.Unclear {
			from = head.Watch(guest)
		}
	}
	if err == nil {
		_, err = out.Write(head.Client)
	}
	if err == nil {
		_, err = guest.Write(head.Server)
	}
	if err == nil {
		spliceConns(guest, out, from, fail)
	}
	return err
}

// checkServerName checks the name of a TLS client, as checkName does, and reports a refusal.
func (n *Network) checkServerName(name string, dst netip.AddrPort, open opening) error {
	if reason := n.checkName(name, dst, open); reason != "" {
		return n.refuseHost("tls", name, dst, reason)
	}
	return nil
}

// checkName returns why a connection to dst, which the policy opens, must not be for name; "" if it may.
func (n *Network) checkName(name string, dst netip.AddrPort, open opening) (reason string) {
	policy, port := n.opts.Policy, int(dst.Port())
	if reason := policy.deniedHost(name, port); reason != "" || open == forAll {
		return reason
	}
	if name == "" {
		return fmt.Sprintf("it names no host, and %s is open for hosts by name only", dst.Addr())
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return fmt.Sprintf("it names an address, and %s is open for hosts by name only", dst.Addr())
	}
	trust, _ := policy.lookUpHost(name, port)
	if trust == unlisted {
		return notAllowed
	}
	if !n.names.hasName(dst.Addr(), name) {
		return fmt.Sprintf("DNS did not give %s as an address of this host", dst.Addr())
	}
	if r, refused := policy.refusedRange(dst, n.host.findRange(dst.Addr()), trust); refused {
		return r.explainRefusal(dst.Addr(), name)
	}
	return ""
}

// refuseHost reports that a connection to dst is refused for the host that it names, and returns the reason as an error.
func (n *Network) refuseHost(protocol, host string, dst netip.AddrPort, reason string) error {
	n.reportHost(protocol, host, dst, reason)
	return errors.New(reason)
}

// reportHost reports that a connection to dst is refused for the host that it names.
func (n *Network) reportHost(protocol, host string, dst netip.AddrPort, reason string) {
	host = printableHost(host)
	r := atoll.Refusal{Host: host, Address: dst.Addr().Unmap().String(), Port: int(dst.Port()), Protocol: protocol, Reason: reason}
	n.opts.Log.Debug("refused", "network", protocol, "host", host, "address", dst.String(), "reason", reason)
	n.opts.Refused(r)
}

// printableHost returns a host as a client wrote it with a question mark for each character that no host has, and not longer than a host.
func printableHost(host string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, host[:min(len(host), 253)])
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
		n.reportRefusal("tcp", dst, func(string) string { return fmt.Sprintf("more than %d connections at once", n.opts.MaxConns) })
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
}

func (c *guestConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.place.markUsed()
	return n, err
}

func (c *guestConn) Write(p []byte) (int, error) {
	c.place.markUsed()
	return c.TCPConn.Write(p)
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
