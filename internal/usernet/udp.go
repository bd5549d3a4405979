package usernet

import (
	"context"
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

const maxDatagram = 65535

// handleUDP serves the first datagram of a flow; those that follow go to the
// endpoint made here. It is called for one packet at a time and must not
// block. False makes the stack answer with ICMP port unreachable.
func (n *Network) handleUDP(r *udp.ForwarderRequest) bool {
	dst := fromTCPIP(r.ID().LocalAddress, r.ID().LocalPort)
	if !n.check("udp", dst) {
		return false
	}
	if !n.begin() {
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
	n.flows.add(f, n.opts.MaxFlows)
	go func() {
		defer n.wg.Done()
		defer n.flows.remove(f)
		n.serveFlow(f, dst)
	}()
	return true
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
		f.send()
	})
	defer wg.Wait()
	defer f.close()
	f.receive(n.opts.FlowIdle)
}

// A flow is what passes between one port of the sandbox and one outside.
type flow struct {
	guest *gonet.UDPConn
	used  atomic.Int64 // when it last passed a datagram, Unix nanoseconds

	mu     sync.Mutex
	out    net.Conn // guarded by mu; nil while it is dialled
	closed bool     // guarded by mu
}

func (f *flow) touch() { f.used.Store(time.Now().UnixNano()) }

// setOut reports false, having closed out, when the flow is closed already.
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

// send carries datagrams outwards until the flow is closed.
func (f *flow) send() {
	b := make([]byte, maxDatagram)
	for {
		n, err := f.guest.Read(b)
		if err != nil {
			return
		}
		f.touch()
		// A datagram that cannot be sent is lost, which is what UDP promises.
		if _, err := f.out.Write(b[:n]); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// receive carries datagrams inwards until the flow is closed, was idle for too
// long or the other side says that nobody is there.
func (f *flow) receive(idle time.Duration) {
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
			f.touch()
			_, _ = f.guest.Write(b[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, syscall.EMSGSIZE):
		default:
			return
		}
	}
}

// flowTable knows the open flows.
type flowTable struct {
	mu  sync.Mutex
	set map[*flow]struct{} // guarded by mu
}

func (t *flowTable) init() { t.set = map[*flow]struct{}{} }

// add enters f; when there would be more than limit, the flow that was silent
// longest is closed.
func (t *flowTable) add(f *flow, limit int) {
	f.touch()
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

func (t *flowTable) remove(f *flow) {
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
