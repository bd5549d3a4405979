package usernet

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	maxDatagram = 65535
	quicPort    = 443
)

// handleUDP serves the first datagram of a flow; later ones go to the endpoint made here. The stack
// calls it for one packet at a time; it must not block. False makes the stack answer with ICMP port
// unreachable.
func (n *Network) handleUDP(r *udp.ForwarderRequest) bool {
	dst := fromTCPIP(r.ID().LocalAddress, r.ID().LocalPort)
	open := n.checkAddress("udp", dst)
	if open == forSome {
		n.reportRefusal("udp", dst, func(string) string { return "--allow has requests of HTTP to this host only" })
	}
	if open < forNames {
		return false
	}
	// QUIC hides its name, so it must not pass where names matter.
	byName := open == forNames || n.opts.Policy.rules.NamesHosts()
	if byName && dst.Port() == quicPort {
		n.reportQUIC(dst)
		return false
	}
	if !n.beginWork() {
		return false
	}
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	if err != nil {
		n.wg.Done()
		n.opts.Log.Debug("flow", "network", "udp", "address", dst.String(), "err", err.String())
		return false
	}
	f := &flow{guest: gonet.NewUDPConn(&wq, ep)}
	if byName {
		f.refuseQUIC = func() { n.reportQUIC(dst) }
	}
	n.flows.addFlow(f, n.opts.MaxFlows)
	go func() {
		defer n.wg.Done()
		defer n.flows.removeFlow(f)
		n.serveFlow(f, dst)
	}()
	return true
}

// reportQUIC reports that QUIC to dst is refused.
func (n *Network) reportQUIC(dst netip.AddrPort) {
	n.reportRefusal("udp", dst, func(string) string { return "QUIC hides which host it is for: programs use TCP instead" })
}

// isQUIC reports whether a datagram begins a connection of QUIC.
func isQUIC(b []byte) bool {
	if len(b) < 5 || b[0]&0xc0 != 0xc0 {
		return false
	}
	version := binary.BigEndian.Uint32(b[1:])
	return version == 1 || version == 0x6b3343cf || version>>8 == 0xff0000 // and drafts
}

func (n *Network) serveFlow(f *flow, dst netip.AddrPort) {
	defer f.close()
	ctx, cancel := context.WithTimeout(n.ctx, n.opts.DialTimeout)
	defer cancel()
	out, err := n.opts.Dial(ctx, "udp", dst.String())
	if err != nil {
		n.opts.Log.Debug("dial", "network", "udp", "address", dst.String(), "err", err)
		return
	}
	if !f.setOut(out) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer f.close()
		f.sendOutward()
	})
	defer wg.Wait()
	defer f.close()
	f.receiveInward(n.opts.FlowIdle)
}

// A flow carries the datagrams between one port of the sandbox and one outside.
type flow struct {
	guest *gonet.UDPConn
	used  atomic.Int64 // time of the last datagram, Unix nanoseconds

	refuseQUIC func() // called for a datagram of QUIC, which ends the flow; nil if QUIC may pass

	mu     sync.Mutex
	out    net.Conn // guarded by mu; nil while it is dialled
	closed bool     // guarded by mu
}

// markUsed records that the flow passes a datagram now.
func (f *flow) markUsed() { f.used.Store(time.Now().UnixNano()) }

// setOut sets the outward connection. It returns false, and closes out, if the flow is closed
// already.
func (f *flow) setOut(out net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = out.Close()
		return false
	}
	f.out = out
	return true
}

// close closes both ends of the flow.
func (f *flow) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	_ = f.guest.Close()
	if f.out != nil {
		_ = f.out.Close()
	}
}

// sendOutward carries datagrams outwards until the flow is closed.
func (f *flow) sendOutward() {
	b := make([]byte, maxDatagram)
	for {
		n, err := f.guest.Read(b)
		if err != nil {
			return
		}
		if f.refuseQUIC != nil && isQUIC(b[:n]) {
			f.refuseQUIC()
			return
		}
		f.markUsed()
		// A datagram that cannot be sent is lost, which is what UDP promises.
		if _, err := f.out.Write(b[:n]); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// receiveInward carries datagrams inwards until the flow is closed, was idle for too long, or the
// other side reports that nobody is there.
func (f *flow) receiveInward(idle time.Duration) {
	b := make([]byte, maxDatagram)
	for {
		rest := idle - time.Since(time.Unix(0, f.used.Load()))
		if rest <= 0 {
			return
		}
		_ = f.out.SetReadDeadline(time.Now().Add(rest))
		n, err := f.out.Read(b)
		switch {
		case err == nil:
			f.markUsed()
			_, _ = f.guest.Write(b[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, syscall.EMSGSIZE):
		default:
			return
		}
	}
}

// flowTable holds the open flows.
type flowTable struct {
	mu  sync.Mutex
	set map[*flow]struct{} // guarded by mu
}

func (t *flowTable) init() { t.set = map[*flow]struct{}{} }

// addFlow enters f; beyond limit it closes the flow that was silent longest.
func (t *flowTable) addFlow(f *flow, limit int) {
	f.markUsed()
	t.mu.Lock()
	var oldest *flow
	if len(t.set) >= limit {
		for o := range t.set {
			if oldest == nil || o.used.Load() < oldest.used.Load() {
				oldest = o
			}
		}
		delete(t.set, oldest)
	}
	t.set[f] = struct{}{}
	t.mu.Unlock()
	if oldest != nil {
		oldest.close()
	}
}

func (t *flowTable) removeFlow(f *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.set, f)
}

func (t *flowTable) closeAll() {
	t.mu.Lock()
	all := make([]*flow, 0, len(t.set))
	for f := range t.set {
		all = append(all, f)
	}
	t.mu.Unlock()
	for _, f := range all {
		f.close()
	}
}
