package usernet

import (
	"context"
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
)

// handleTCP serves one connection that the sandbox requests. It dials outwards first and answers
// the sandbox afterwards, so that a port which is closed outside looks closed inside.
func (n *Network) handleTCP(r *tcp.ForwarderRequest) {
	if !n.beginWork() {
		r.Complete(true)
		return
	}
	defer n.wg.Done()

	out := n.dialTCP(r)
	if out == nil {
		r.Complete(true)
		return
	}
	defer n.conns.Add(-1)
	defer out.Close()

	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	r.Complete(false)
	if err != nil {
		resetConn(out)
		return
	}
	defer ep.Close()
	keepAlive(ep)
	spliceConns(n.ctx, &guestConn{TCPConn: gonet.NewTCPConn(&wq, ep), ep: ep, wq: &wq}, out)
}

// dialTCP makes the outward connection; it returns nil if that is refused or fails. For a
// connection the caller has to call n.conns.Add(-1).
func (n *Network) dialTCP(r *tcp.ForwarderRequest) net.Conn {
	dst := fromTCPIP(r.ID().LocalAddress, r.ID().LocalPort)
	if !n.checkAddress("tcp", dst) {
		return nil
	}
	if !n.admitConn(dst) {
		return nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.opts.DialTimeout)
	defer cancel()
	out, err := n.opts.Dial(ctx, "tcp", dst.String())
	if err != nil {
		n.conns.Add(-1)
		n.opts.Log.Debug("dial", "network", "tcp", "address", dst.String(), "err", err)
		return nil
	}
	return out
}

// admitConn counts one more connection, unless the limit is reached. For a counted one the caller
// has to call n.conns.Add(-1).
func (n *Network) admitConn(dst netip.AddrPort) bool {
	if n.conns.Add(1) > int64(n.opts.MaxConns) {
		n.conns.Add(-1)
		n.reportRefusal("tcp", dst, func(string) string { return fmt.Sprintf("more than %d connections at once", n.opts.MaxConns) })
		return false
	}
	return true
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
	ended atomic.Bool // by us
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

// spliceConns copies both ways until both have ended. It passes the end of one direction on as the
// end of that direction. A failure of either resets both connections, as one connection would be,
// and so does the end of ctx.
func spliceConns(ctx context.Context, guest *guestConn, out net.Conn) {
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	// A reset wakes both copies, whichever end they wait for.
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
	// A copy that waits for the remote does not see what the sandbox does.
	defer guest.onFailure(fail)()

	one := func(dst, src net.Conn) {
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
	one(out, guest)
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
