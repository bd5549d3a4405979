package usernet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// testDevice is the device that the tests use; TestPacketDevice and
// TestRootless run them over others.
var testDevice = Device(os.Getenv("ATOLL_TEST_DEVICE"))

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// need returns a namespace, or skips the test where there can be none.
func need(tb testing.TB) *Namespace {
	tb.Helper()
	ns, err := NewNamespace(NamespaceOptions{Device: testDevice})
	if errors.Is(err, atoll.ErrUnavailable) && os.Getenv("CI") == "" {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := ns.Close(); err != nil {
			tb.Error(err)
		}
	})
	return ns
}

// open returns a sandbox's network and the namespace at its other end.
func open(tb testing.TB, nw atoll.Network, opts Options) (*Network, *Namespace) {
	tb.Helper()
	ns := need(tb)
	policy, err := NewPolicy(nw)
	if err != nil {
		tb.Fatal(err)
	}
	opts.Policy = policy
	n, err := New(ns.Link(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := n.Close(); err != nil {
			tb.Error(err)
		}
	})
	return n, ns
}

// do calls f on a thread that is in the namespace. Sockets that f makes and
// processes that it starts are in the namespace for ever; goroutines that it
// starts are not in it.
func (ns *Namespace) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}

// openFlows returns the number of open UDP flows.
func openFlows(n *Network) int {
	n.flows.mu.Lock()
	defer n.flows.mu.Unlock()
	return len(n.flows.set)
}

// dialIn connects from inside the namespace.
func dialIn(ns *Namespace, network, address string) (net.Conn, error) {
	var c net.Conn
	err := ns.do(func() error {
		d := net.Dialer{Timeout: testenv.Scale(10 * time.Second)}
		var err error
		c, err = d.Dial(network, address)
		return err
	})
	return c, err
}

func mustDialIn(tb testing.TB, ns *Namespace, network, address string) net.Conn {
	tb.Helper()
	c, err := dialIn(ns, network, address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testenv.Scale(30 * time.Second)))
	return c
}

// world maps addresses out in the world to servers of the test.
type world map[string]string

func (w world) dial(ctx context.Context, network, address string) (net.Conn, error) {
	real, ok := w[network+" "+address]
	if !ok {
		return nil, fmt.Errorf("%s %s is not in the test's world", network, address)
	}
	return (&net.Dialer{}).DialContext(ctx, network, real)
}

// serveTCP runs handle for each connection to a loopback listener, until the
// test ends.
func serveTCP(tb testing.TB, handle func(*net.TCPConn)) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		acceptAll(l, handle)
	}()
	tb.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

func acceptAll(l net.Listener, handle func(*net.TCPConn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			handle(c.(*net.TCPConn))
		}()
	}
}

// serveUDP answers each datagram to a loopback socket with itself.
func serveUDP(tb testing.TB) string {
	tb.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, maxDatagram)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(b[:n], from)
		}
	}()
	tb.Cleanup(func() {
		pc.Close()
		<-done
	})
	return pc.LocalAddr().String()
}
