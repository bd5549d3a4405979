// Package usernet is the private network of one sandbox, in user mode.
//
// A [Network] sits at the far end of an Ethernet link (a TAP device in the
// sandbox's own network namespace, later a virtual machine's network socket)
// and plays everything that is on the other side: the gateway, the DNS server
// and, through them, the rest of the world. TCP connections end in a network
// stack inside this process and continue as ordinary sockets of this process;
// so do UDP flows. It needs no privilege, no bridge, no address translation and
// no firewall rule, and the sandbox shares no network with the machine.
//
// A [Policy] decides, on the address that is about to be dialled, what may be
// reached. A refused address looks closed from inside, at once: a reset for TCP,
// an ICMP port unreachable for UDP. If an address is open for names only, the
// names in TLS and HTTP are checked, too.
//
//	ns, err := usernet.NewNamespace(usernet.NamespaceOptions{})
//	...
//	policy, err := usernet.NewPolicy(spec.Network)
//	...
//	n, err := usernet.New(ns.Link(), usernet.Options{Policy: policy})
//
// # Addresses
//
// The link is 192.0.0.0/29, the range that RFC 7335 sets aside for exactly
// this: the two ends of a link that no network ever routes. No LAN, VPN or
// container network uses it, so it hides nothing that a policy might want to
// allow. For IPv6 it is a unique local prefix. The gateway answers DNS and
// ping, and nothing else; it never stands for the host.
package usernet

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gateway"
)

// The addresses on the link. The owner of the guest's IP address must have its MAC
// address too; others on the link are found by ARP and NDP.
var (
	Gateway = netip.MustParsePrefix("192.0.0.1/29") // also the DNS server
	Guest   = netip.MustParsePrefix("192.0.0.2/29")

	Gateway6 = netip.MustParsePrefix("fd61:746f:6c6c::1/64") // also a DNS server
	Guest6   = netip.MustParsePrefix("fd61:746f:6c6c::2/64")

	GatewayMAC = net.HardwareAddr{0x02, 0x61, 0x74, 0x6f, 0x6c, 0x01}
	GuestMAC   = net.HardwareAddr{0x02, 0x61, 0x74, 0x6f, 0x6c, 0x02}
)

// DefaultMTU suits a link without a wire: the largest possible, so that a packet costs as little
// per byte as it can.
const DefaultMTU = 65520

// The limits of zero Options.
const (
	DefaultMaxConns     = 8192
	DefaultConnIdle     = time.Minute
	DefaultMaxFlows     = 512
	DefaultMaxDials     = 256
	DefaultFlowIdle     = time.Minute
	DefaultDialTimeout  = 30 * time.Second
	maxDNSQueries       = 256
	keepaliveIdle       = time.Minute
	keepaliveInterval   = 15 * time.Second
	keepaliveCount      = 4
	defaultSocketBuffer = 256 << 10 // grows with use
	maxSocketBuffer     = 4 << 20
)

// A DialFunc makes the outward connections: network is "tcp" or "udp", address an IP address and
// port that the policy has allowed. It must return soon after ctx has ended.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Options configure a Network. Only Policy is required.
type Options struct {
	// Policy decides until SetPolicy.
	Policy *Policy
	// Dial replaces net.Dialer's DialContext.
	Dial DialFunc
	// Resolver answers the DNS questions that the policy allows. Nil means the servers in the
	// computer's resolv.conf, read again when it changes, and on Windows those of its adapters.
	Resolver Resolver
	// MTU of the link; 0 means DefaultMTU.
	MTU int
	// MaxConns limits TCP connections, those to our DNS server included. One more ends the connection that was silent longest, if
	// for ConnIdle. Otherwise the Network resets it, and the DNS server closes it.
	MaxConns int
	// ConnIdle is the time for which a connection has to be silent before it makes room for another.
	ConnIdle time.Duration
	// MaxFlows limits UDP flows; one more ends the flow that was silent longest.
	MaxFlows int
	// MaxDials limits TCP connections that are being made; one more is dropped, and made when the
	// sandbox asks again a moment later.
	MaxDials int
	// FlowIdle ends a UDP flow that was silent for that long.
	FlowIdle time.Duration
	// DialTimeout ends an attempt to connect.
	DialTimeout time.Duration
	// Report, if it is not nil, is called for each name, connection and request that has ended or is refused, without a number and
	// a time. It may be called from many goroutines at once, and must not block.
	Report func(atoll.NetworkEvent)
	// Advise returns a sentence for programs in the sandbox about how to open an entry of Network.Allow. Nil means none.
	Advise func(entry string) string
	// Log gets refusals and failures at level Debug. Nil means none.
	Log *slog.Logger

	// Authority issues the certificates for hosts whose requests the policy looks at. It is required if there are such hosts.
	Authority *gateway.Authority
	// Value returns the value of the secret with that name, or says why there is none. It is required if the policy has secrets.
	Value func(name string) (string, error)
	// Roots are the authorities of servers. Nil means those of this computer.
	Roots *x509.CertPool
}

func (o Options) withDefaults() Options {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Resolver == nil {
		o.Resolver = systemResolver()
	}
	if o.Report == nil {
		o.Report = func(atoll.NetworkEvent) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	setDefault(&o.MTU, DefaultMTU)
	setDefault(&o.MaxConns, DefaultMaxConns)
	setDefault(&o.ConnIdle, DefaultConnIdle)
	setDefault(&o.MaxFlows, DefaultMaxFlows)
	setDefault(&o.MaxDials, DefaultMaxDials)
	setDefault(&o.FlowIdle, DefaultFlowIdle)
	setDefault(&o.DialTimeout, DefaultDialTimeout)
	return o
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// A Network serves one link until Close. Its methods may be called at once
// from many goroutines.
type Network struct {
	opts   Options
	policy atomic.Pointer[Policy]
	host   *hostAddrs
	names  *nameTable
	stack  *stack.Stack
	link   *link
	dns    *dnsServer

	gateway *gateway.Gateway // for connections to addresses that are open for names only

	ctx    context.Context // ends with Close; connections, outward dials and queries depend on it
	cancel context.CancelFunc

	conns connTable // open TCP connections
	flows flowTable

	mu     sync.Mutex
	closed bool           // guarded by mu
	wg     sync.WaitGroup // Add under mu while not closed
}

const nic = 1

// New serves the link until Close. Each Read of link must return one Ethernet frame and each Write
// takes one; both may be called at once. New owns link, also if it fails.
func New(link io.ReadWriteCloser, opts Options) (*Network, error) {
	if opts.Policy == nil {
		return nil, errors.Join(atoll.Errorf("network", "", atoll.ErrInvalid, "no policy"), link.Close())
	}
	n := &Network{opts: opts.withDefaults(), host: newHostAddrs(), names: newNameTable()}
	n.policy.Store(opts.Policy)
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.gateway = gateway.New(gateway.Options{
		Report:    n.reportEvent,
		Advise:    n.opts.Advise,
		Dial:      n.dialMore,
		Log:       n.opts.Log,
		Rules:     opts.Policy.rules,
		Authority: n.opts.Authority,
		Value:     n.opts.Value,
		DialHost:  n.dialHost,
		Roots:     n.opts.Roots,
	})
	n.flows.init()
	n.link = newLink(link, GatewayMAC, n.opts.MTU)
	if err := n.startStack(); err != nil {
		return nil, errors.Join(atoll.E("network", "", atoll.ErrInternal, err), n.Close())
	}
	return n, nil
}

// SetPolicy replaces the policy, and resets the connections that the new one refuses, or of which it wants to know more than the old one
// did. It fails if the new one looks at requests in TLS and the network has no authority.
func (n *Network) SetPolicy(p *Policy) error {
	if p.NeedsAuthority() && n.opts.Authority == nil {
		return atoll.Errorf("network", "", atoll.ErrInvalid,
			"rules for requests need a certificate that comes into the sandbox at its start: stop the sandbox first, or create it with such a rule")
	}
	n.policy.Store(p)
	n.gateway.SetRules(p.rules)
	n.conns.endRefused()
	n.flows.endRefused()
	return nil
}

// startStack creates the network stack and the DNS server.
func (n *Network) startStack() error {
	n.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	if err := n.tuneTCP(); err != nil {
		return err
	}
	if err := n.stack.CreateNIC(nic, n.link); err != nil {
		return stackError("create interface", err)
	}
	if err := errors.Join(n.joinLink(Gateway, Guest), n.joinLink(Gateway6, Guest6)); err != nil {
		return err
	}
	// The stack has to take packets for any address in the world, and to answer
	// in its name.
	if err := n.stack.SetPromiscuousMode(nic, true); err != nil {
		return stackError("set promiscuous", err)
	}
	if err := n.stack.SetSpoofing(nic, true); err != nil {
		return stackError("set spoofing", err)
	}
	forward := tcp.NewForwarder(n.stack, defaultSocketBuffer, n.opts.MaxDials, n.handleTCP)
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, forward.HandlePacket)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(n.stack, n.handleUDP).HandlePacket)
	// The stack would answer ping in anybody's name; only the gateway is there.
	n.stack.SetTransportProtocolHandler(icmp.ProtocolNumber4, swallowForOthers)
	n.stack.SetTransportProtocolHandler(icmp.ProtocolNumber6, swallowForOthers)
	return n.startDNS()
}

// swallowForOthers reports whether a ping is for another address than the gateway's, so that the
// stack does not answer it.
func swallowForOthers(id stack.TransportEndpointID, _ *stack.PacketBuffer) bool {
	dst := fromTCPIP(id.LocalAddress, 0).Addr()
	return dst != Gateway.Addr() && dst != Gateway6.Addr()
}

// joinLink adds the gateway's address, and the guest as a static neighbour: a first question could
// be lost on a link that has just come up, and would be repeated a second later.
func (n *Network) joinLink(gateway, guest netip.Prefix) error {
	proto := ipv4.ProtocolNumber
	if gateway.Addr().Is6() {
		proto = ipv6.ProtocolNumber
	}
	addr := tcpip.AddressWithPrefix{Address: toTCPIP(gateway.Addr()), PrefixLen: gateway.Bits()}
	err := n.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: addr}, stack.AddressProperties{})
	if err != nil {
		return stackError("add address "+gateway.String(), err)
	}
	n.stack.AddRoute(tcpip.Route{Destination: addr.Subnet(), NIC: nic})
	if err := n.stack.AddStaticNeighbor(nic, proto, toTCPIP(guest.Addr()), tcpip.LinkAddress(GuestMAC)); err != nil {
		return stackError("add neighbour "+guest.String(), err)
	}
	return nil
}

func (n *Network) tuneTCP() error {
	sack := tcpip.TCPSACKEnabled(true)
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	// Old duplicates cannot turn up on a link without a wire, so ports can be reused soon.
	timeWait := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: defaultSocketBuffer, Max: maxSocketBuffer}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: defaultSocketBuffer, Max: maxSocketBuffer}
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &timeWait, &send, &receive} {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return stackError("tune tcp", err)
		}
	}
	return nil
}

// Close resets every connection, closes the link, and returns when all that New started has ended:
// soon, whatever the connected sides do. A second Close does nothing.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()

	n.cancel()
	if n.dns != nil {
		n.dns.close()
	}
	n.flows.closeAll()
	n.abortAll()
	n.gateway.Close()
	err := n.link.closeFrames()
	// Before stack.Wait, which holds a lock that a packet on its way in needs.
	n.link.Wait()
	if n.stack != nil {
		n.stack.Close()
		n.stack.Wait()
	}
	return err
}

// abortAll aborts the stack's endpoints with the sandbox, and waits for the goroutines that serve
// it. A handshake in progress may enter its endpoint after the list was read, so abortAll reads it
// again until no goroutine is left.
func (n *Network) abortAll() {
	done := make(chan struct{})
	go func() {
		n.wg.Wait()
		close(done)
	}()
	for {
		if n.stack != nil {
			for _, e := range n.stack.RegisteredEndpoints() {
				e.Abort()
			}
		}
		select {
		case <-done:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// beginWork counts one more goroutine that Close waits for. It returns false if Close has begun;
// otherwise the caller has to call n.wg.Done.
func (n *Network) beginWork() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.wg.Add(1)
	return true
}

func stackError(what string, err tcpip.Error) error {
	return errors.New(what + ": " + err.String())
}

func toTCPIP(a netip.Addr) tcpip.Address {
	if a.Is4() {
		return tcpip.AddrFrom4(a.As4())
	}
	return tcpip.AddrFrom16(a.As16())
}

func fromTCPIP(a tcpip.Address, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return netip.AddrPortFrom(addr, port)
}
