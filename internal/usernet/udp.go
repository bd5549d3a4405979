package usernet

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/seed46cd37a8/atoll"
)

const (
	maxDatagram = 65535
	quicPort    = 443
)

// handleUDP serves the first datagram of a flow; later ones go to the endpoint made here. The stack
// calls it for one packet at a time; it must not block. False makes the stack answer with ICMP port
// unreachable.
func (n *Network) handleUDP(r *udp.ForwarderRequest) bool {
	policy, to := n.policy.Load(), n.findDestination(fromTCPIP(r.ID().LocalAddress, r.ID().LocalPort))
	dst, v := to.AddrPort, n.checkAddress(policy, to)
	if v.open == forSome {
		v = onlyRequests
	}
	// QUIC hides its name, so it must not pass where names matter.
	byName := v.open == forNames || policy.rules.NamesHosts()
	if v.open != closed && byName && dst.Port() == quicPort {
		v = hidesName
	}
	if v.open == closed {
		n.reportRefusal("udp", n.names.findName(dst.Addr()), dst, v)
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
	f := &flow{guest: gonet.NewUDPConn(&wq, ep), event: newEvent("udp", n.names.findName(dst.Addr()), dst)}
	f.event.Rule = v.rule
	if byName {
		f.refuseQUIC = func() { n.reportRefusal("udp", f.event.Host, dst, hidesName) }
	}
	f.mayGoOn = func() bool {
		p := n.policy.Load()
		open := n.checkAddress(p, to).open
		return open >= forNames && (byName || open == forAll && !p.rules.NamesHosts())
	}
	n.flows.addFlow(f, n.opts.MaxFlows)
	go func() {
		defer n.wg.Done()
		defer n.flows.removeFlow(f)
		began := time.Now()
		if n.policy.Load() != policy && !f.mayGoOn() { // the change may have come before addFlow
			f.close()
			return
		}
		n.serveFlow(f, dst)
		f.event.Duration = atoll.Duration(time.Since(began))
		n.reportEvent(f.event)
	}()
	return true
}

// hidesName is the verdict about QUIC where names matter.
var hidesName = verdict{reason: "QUIC hides which host it is for: programs use TCP instead"}

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
		f.event.Verdict, f.event.Reason = atoll.NetworkFailed, explainDial(err)
		return
	}
	if !f.setOut(out) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer f.close()
		f.event.Sent = f.sendOutward()
	})
	defer wg.Wait()
	defer f.close()
	f.event.Received = f.receiveInward(n.opts.FlowIdle)
}

// A flow carries the datagrams between one port of the sandbox and one outside.
type flow struct {
	guest *gonet.UDPConn
	used  atomic.Int64 // time of the last datagram, Unix nanoseconds

	refuseQUIC func()      // called for a datagram of QUIC, which ends the flow; nil if QUIC may pass
	mayGoOn    func() bool // reports whether the policy lets the flow go on

	event atoll.NetworkEvent // of the flow, for those who serve it

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

// sendOutward carries datagrams outwards until the flow is closed, and returns their bytes.
func (f *flow) sendOutward() (sent atoll.Bytes) {
	b := make([]byte, maxDatagram)
	for {
		n, err := f.guest.Read(b)
		if err != nil {
			return sent
		}
		if f.refuseQUIC != nil && isQUIC(b[:n]) {
			f.refuseQUIC()
			return sent
		}
		f.markUsed()
		sent += atoll.Bytes(n)
		// A datagram that cannot be sent is lost, which is what UDP promises.
		if _, err := f.out.Write(b[:n]); errors.Is(err, net.ErrClosed) {
			return sent
		}
	}
}

// receiveInward carries datagrams inwards until the flow is closed, was idle for too long, or the
// other side reports that nobody is there. It returns their bytes.
func (f *flow) receiveInward(idle time.Duration) (received atoll.Bytes) {
	b := make([]byte, maxDatagram)
	for {
		rest := idle - time.Since(time.Unix(0, f.used.Load()))
		if rest <= 0 {
			return received
		}
		_ = f.out.SetReadDeadline(time.Now().Add(rest))
		n, err := f.out.Read(b)
		switch {
		case err == nil:
			f.markUsed()
			received += atoll.Bytes(n)
			_, _ = f.guest.Write(b[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, syscall.EMSGSIZE):
		default:
			return received
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
	for _, f := range t.listFlows() {
		f.close()
	}
}

// endRefused closes the flows that must not go on.
func (t *flowTable) endRefused() {
	for _, f := range t.listFlows() {
		if !f.mayGoOn() {
			f.close()
		}
	}
}

func (t *flowTable) listFlows() []*flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.set))
}
