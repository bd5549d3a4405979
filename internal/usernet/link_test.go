package usernet

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// wire is a link whose far end is the test.
type wire struct {
	in, out chan []byte // as the Network sees it
	closed  chan struct{}
	once    sync.Once
}

func newWire() *wire {
	return &wire{in: make(chan []byte), out: make(chan []byte, 1000), closed: make(chan struct{})}
}

func (w *wire) Read(p []byte) (int, error) {
	select {
	case f := <-w.in:
		return copy(p, f), nil
	case <-w.closed:
		return 0, io.EOF
	}
}

func (w *wire) Write(p []byte) (int, error) {
	select {
	case w.out <- bytes.Clone(p):
	default:
	}
	return len(p), nil
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (w *wire) send(tb testing.TB, frame []byte) {
	tb.Helper()
	select {
	case w.in <- frame:
	case <-time.After(testenv.Scale(10 * time.Second)):
		tb.Fatal("the link is not read any more")
	}
}

// tally is a log that counts what is said.
type tally struct {
	mu    sync.Mutex
	times map[string]int // guarded by mu
}

func newTally() (*tally, *slog.Logger) {
	t := &tally{times: map[string]int{}}
	return t, slog.New(t)
}

func (t *tally) of(message string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.times[message]
}

func (t *tally) Enabled(context.Context, slog.Level) bool { return true }
func (t *tally) WithAttrs([]slog.Attr) slog.Handler       { return t }
func (t *tally) WithGroup(string) slog.Handler            { return t }

func (t *tally) Handle(_ context.Context, r slog.Record) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times[r.Message]++
	return nil
}

// wired returns a Network over a wire.
func wired(tb testing.TB, opts Options) (*Network, *wire) {
	tb.Helper()
	w := newWire()
	opts.Policy = mustPolicy(tb, atoll.NetworkOn)
	n, err := New(w, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { n.Close() })
	return n, w
}

func ethernet(dst net.HardwareAddr, proto tcpip.NetworkProtocolNumber, payload []byte) []byte {
	f := make(header.Ethernet, header.EthernetMinimumSize, header.EthernetMinimumSize+len(payload))
	f.Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(GuestMAC), DstAddr: tcpip.LinkAddress(dst), Type: proto})
	return append(f, payload...)
}

// tcpFrame is a TCP segment without data from the guest.
func tcpFrame(dst netip.AddrPort, flags header.TCPFlags, seq, ack uint32) []byte {
	b := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize)
	src, to := toTCPIP(Guest.Addr()), toTCPIP(dst.Addr())
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(header.TCPProtocolNumber), SrcAddr: src, DstAddr: to})
	ip.SetChecksum(^ip.CalculateChecksum())
	seg := header.TCP(b[header.IPv4MinimumSize:])
	seg.Encode(&header.TCPFields{SrcPort: 1234, DstPort: dst.Port(), SeqNum: seq, AckNum: ack, DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 65535})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, src, to, header.TCPMinimumSize)
	seg.SetChecksum(^seg.CalculateChecksum(checksum.Combine(sum, 0)))
	return ethernet(GatewayMAC, header.IPv4ProtocolNumber, b)
}

// reply returns the next TCP segment that comes back.
func (w *wire) reply(tb testing.TB) header.TCP {
	tb.Helper()
	for deadline := time.After(testenv.Scale(10 * time.Second)); ; {
		select {
		case f := <-w.out:
			ip := header.IPv4(f[header.EthernetMinimumSize:])
			if header.Ethernet(f).Type() == header.IPv4ProtocolNumber && ip.TransportProtocol() == header.TCPProtocolNumber {
				return header.TCP(ip.Payload())
			}
		case <-deadline:
			tb.Fatal("no answer")
		}
	}
}

// Frames that make no sense, or are for others, do no harm to those that come
// after them.
func TestLinkSurvivesOddFrames(t *testing.T) {
	said, log := newTally()
	_, w := wired(t, Options{Log: log, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }})
	for _, frame := range [][]byte{
		{},
		{1},
		make([]byte, header.EthernetMinimumSize-1),
		make([]byte, header.EthernetMinimumSize),
		ethernet(net.HardwareAddr{2, 9, 9, 9, 9, 9}, header.IPv4ProtocolNumber, make([]byte, 100)),
		ethernet(GatewayMAC, header.IPv4ProtocolNumber, nil),
		ethernet(GatewayMAC, header.IPv4ProtocolNumber, bytes.Repeat([]byte{0x45}, 100)),
		ethernet(GatewayMAC, header.IPv6ProtocolNumber, bytes.Repeat([]byte{0x60}, 100)),
		ethernet(GatewayMAC, header.ARPProtocolNumber, []byte{0, 1}),
		ethernet(GatewayMAC, 0x1234, make([]byte, 100)),
		bytes.Repeat([]byte{0xff}, DefaultMTU+1000),
	} {
		w.send(t, frame)
	}
	w.send(t, tcpFrame(netip.MustParseAddrPort("1.2.3.4:80"), header.TCPFlagSyn, 1, 0))
	if seg := w.reply(t); !seg.Flags().Contains(header.TCPFlagRst) {
		t.Errorf("got flags %s, want a reset", seg.Flags())
	}
	if got := said.of("dial"); got != 1 {
		t.Errorf("failed dials: got %d, want 1", got)
	}
}

// The sandbox gets no SYN-ACK before the outward connection is made.
func TestHandshakeFollowsDial(t *testing.T) {
	proceed := make(chan struct{})
	dial := func(context.Context, string, string) (net.Conn, error) {
		<-proceed
		c, _ := net.Pipe()
		return c, nil
	}
	_, w := wired(t, Options{Dial: dial})
	w.send(t, tcpFrame(netip.MustParseAddrPort("1.2.3.4:80"), header.TCPFlagSyn, 1, 0))
	w.send(t, tcpFrame(netip.MustParseAddrPort("1.2.3.4:81"), header.TCPFlagAck, 1, 1)) // answered at once, with a reset
	if seg := w.reply(t); !seg.Flags().Contains(header.TCPFlagRst) {
		t.Errorf("before the dial: got flags %s, want only the other segment's reset", seg.Flags())
	}
	close(proceed)
	if seg := w.reply(t); seg.Flags() != header.TCPFlagSyn|header.TCPFlagAck {
		t.Errorf("after the dial: got flags %s, want SYN and ACK", seg.Flags())
	}
}

// Close does not wait for a guest that does not finish its handshakes.
func TestCloseDuringHandshake(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		c, _ := net.Pipe()
		return c, nil
	}
	n, w := wired(t, Options{Dial: dial})
	for port := range uint16(20) {
		w.send(t, tcpFrame(netip.AddrPortFrom(netip.MustParseAddr("1.2.3.4"), 80+port), header.TCPFlagSyn, 1, 0))
	}
	if seg := w.reply(t); seg.Flags() != header.TCPFlagSyn|header.TCPFlagAck {
		t.Fatalf("got flags %s, want SYN and ACK", seg.Flags())
	}
	done := make(chan error)
	go func() { done <- n.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testenv.Scale(10 * time.Second)):
		t.Fatal("Close waits")
	}
	if got := n.conns.countConns(); got != 0 {
		t.Errorf("open connections after Close: %d", got)
	}
}

// More dials than allowed wait for their turn: the SYN is dropped, and the
// guest sends it again.
func TestDialLimit(t *testing.T) {
	dialling := make(chan string, 10)
	proceed := make(chan struct{})
	dial := func(_ context.Context, _, address string) (net.Conn, error) {
		dialling <- address
		<-proceed
		return nil, io.EOF
	}
	_, w := wired(t, Options{MaxDials: 1, Dial: dial})
	first, second := netip.MustParseAddrPort("1.2.3.4:80"), netip.MustParseAddrPort("1.2.3.4:81")
	w.send(t, tcpFrame(first, header.TCPFlagSyn, 1, 0))
	<-dialling
	w.send(t, tcpFrame(second, header.TCPFlagSyn, 1, 0))
	proceed <- struct{}{}
	if seg := w.reply(t); seg.SourcePort() != first.Port() {
		t.Errorf("answer from port %d, want %d", seg.SourcePort(), first.Port())
	}
	eventually(t, "the second is dialled when sent again", func() bool {
		w.send(t, tcpFrame(second, header.TCPFlagSyn, 1, 0))
		select {
		case got := <-dialling:
			return got == second.String()
		default:
			return false
		}
	})
	close(proceed)
}

func TestNewNeedsAPolicy(t *testing.T) {
	w := newWire()
	_, err := New(w, Options{})
	if atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("got %v, want invalid", err)
	}
	select {
	case <-w.closed:
	default:
		t.Error("New failed and left the link open")
	}
}

// Whatever the guest puts on the wire, the Network goes on and nothing leaves
// that the policy refuses.
func FuzzFrames(f *testing.F) {
	f.Add(tcpFrame(netip.MustParseAddrPort("1.2.3.4:80"), header.TCPFlagSyn, 1, 0))
	f.Add(tcpFrame(netip.MustParseAddrPort("10.0.0.1:80"), header.TCPFlagSyn, 1, 0))
	f.Add(ethernet(GatewayMAC, header.ARPProtocolNumber, make([]byte, 28)))
	f.Add(ethernet(GatewayMAC, header.IPv6ProtocolNumber, make([]byte, 60)))
	refused := make(chan string, 1)
	check := mustPolicy(f, atoll.NetworkOn)
	_, w := wired(f, Options{Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		if ap := netip.MustParseAddrPort(address); refusalReason(check, ap.Addr(), nil, unlisted) != "" {
			refused <- address
		}
		return nil, io.EOF
	}})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) == 0 {
			return
		}
		w.send(t, frame)
		select {
		case a := <-refused:
			t.Errorf("dialled %s", a)
		default:
		}
	})
}

// eventually waits until ok, for as long as a loaded machine may need.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(testenv.Scale(20 * time.Second)); !ok(); {
		if time.Now().After(deadline) {
			tb.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
