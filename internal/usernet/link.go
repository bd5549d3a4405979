package usernet

import (
	"io"
	"net"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// link connects the network stack to a stream of Ethernet frames.
//
// It does not use gVisor's own endpoint for file descriptors: the read loop of that ends for good
// at the first frame for another address (a guest could cut its own wire), and it blocks a thread
// where the Go runtime's poller needs none.
type link struct {
	frames io.ReadWriteCloser
	mtu    atomic.Uint32
	pool   sync.Pool // of *[]byte, one frame each

	shutOnce sync.Once
	shutErr  error
	wg       sync.WaitGroup // the read loop

	mu         sync.RWMutex
	addr       tcpip.LinkAddress       // guarded by mu
	dispatcher stack.NetworkDispatcher // guarded by mu
}

func newLink(frames io.ReadWriteCloser, mac net.HardwareAddr, mtu int) *link {
	l := &link{frames: frames, addr: tcpip.LinkAddress(mac)}
	l.mtu.Store(uint32(mtu))
	size := mtu + header.EthernetMinimumSize
	l.pool.New = func() any {
		b := make([]byte, size)
		return &b
	}
	return l
}

// closeFrames closes the frames, which ends the read loop.
func (l *link) closeFrames() error {
	l.shutOnce.Do(func() { l.shutErr = l.frames.Close() })
	return l.shutErr
}

// Attach starts the read loop; nil detaches.
func (l *link) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	start := d != nil && l.dispatcher == nil
	l.dispatcher = d
	l.mu.Unlock()
	if start {
		l.wg.Go(l.readLoop)
	}
}

func (l *link) readLoop() {
	b := make([]byte, l.MTU()+header.EthernetMinimumSize)
	for {
		n, err := l.frames.Read(b)
		if err != nil {
			return
		}
		l.deliverFrame(b[:n])
	}
}

// deliverFrame passes one frame to the stack, if it is valid and addressed to us.
func (l *link) deliverFrame(frame []byte) {
	l.mu.RLock()
	d, self := l.dispatcher, l.addr
	l.mu.RUnlock()
	if d == nil || len(frame) < header.EthernetMinimumSize {
		return
	}
	eth := header.Ethernet(frame)
	if dst := eth.DestinationAddress(); dst != self && dst[0]&1 == 0 {
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	defer pkt.DecRef()
	if l.ParseHeader(pkt) {
		d.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
	}
}

// WritePackets writes each packet as one frame. It drops a frame that cannot be written, as a wire
// would.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	bp := l.pool.Get().(*[]byte)
	defer l.pool.Put(bp)
	for _, pkt := range pkts.AsSlice() {
		frame := (*bp)[:0]
		for _, s := range pkt.AsSlices() {
			frame = append(frame, s...)
		}
		_, _ = l.frames.Write(frame)
	}
	return pkts.Len(), nil
}

// AddHeader prepends the Ethernet header.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader removes the Ethernet header.
func (l *link) ParseHeader(pkt *stack.PacketBuffer) bool {
	b, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	if ok {
		pkt.NetworkProtocolNumber = header.Ethernet(b).Type()
	}
	return ok
}

// IsAttached reports whether a stack is attached.
func (l *link) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

// LinkAddress returns the gateway's MAC address.
func (l *link) LinkAddress() tcpip.LinkAddress {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.addr
}

// SetLinkAddress changes the MAC address.
func (l *link) SetLinkAddress(addr tcpip.LinkAddress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addr = addr
}

// MTU returns the size of the largest IP packet.
func (l *link) MTU() uint32 { return l.mtu.Load() }

// SetMTU makes packets smaller; they cannot exceed the MTU of newLink.
func (l *link) SetMTU(mtu uint32) { l.mtu.Store(min(mtu, l.mtu.Load())) }

// MaxHeaderLength returns the length of the Ethernet header.
func (l *link) MaxHeaderLength() uint16 { return header.EthernetMinimumSize }

// Capabilities reports that neighbours have to be found with ARP or NDP.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityResolutionRequired
}

// ARPHardwareType returns Ethernet.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// Wait returns when the read loop has ended.
func (l *link) Wait() { l.wg.Wait() }

// Close is called when the stack releases the link.
func (l *link) Close() { _ = l.closeFrames() }

// SetOnCloseAction does nothing: Close is enough.
func (l *link) SetOnCloseAction(func()) {}

var _ stack.LinkEndpoint = (*link)(nil)
