package usernet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// stuff writes until the other side takes no more.
func stuff(tb testing.TB, c net.Conn) {
	tb.Helper()
	b := make([]byte, 64<<10)
	for {
		_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Write(b); errors.Is(err, os.ErrDeadlineExceeded) {
			return
		} else if err != nil {
			tb.Fatal(err)
		}
	}
}

// mustClose fails the test when Close waits for anybody.
func mustClose(tb testing.TB, n *Network) {
	tb.Helper()
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- n.Close() }()
	select {
	case err := <-done:
		if err != nil {
			tb.Error(err)
		}
		tb.Log("closed after", time.Since(start))
	case <-time.After(testenv.Scale(10 * time.Second)):
		tb.Fatal("Close waits")
	}
}

// quiet is a server that has one connection, and neither reads nor writes.
func quiet(t *testing.T) (dial DialFunc, server <-chan *net.TCPConn) {
	conns := make(chan *net.TCPConn, 1)
	end := make(chan struct{})
	address := serveTCP(t, func(c *net.TCPConn) {
		conns <- c
		<-end
	})
	t.Cleanup(func() { close(end) })
	return world{"tcp 1.2.3.4:80": address}.dial, conns
}

// Close is prompt whatever those who are connected do, and do not.
func TestCloseIsPrompt(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, c, server *net.TCPConn){
		"idle":                       func(*testing.T, *net.TCPConn, *net.TCPConn) {},
		"the remote does not read":   func(t *testing.T, c, _ *net.TCPConn) { stuff(t, c) },
		"the sandbox does not read":  func(t *testing.T, _, server *net.TCPConn) { stuff(t, server) },
		"nobody reads":               func(t *testing.T, c, server *net.TCPConn) { stuff(t, c); stuff(t, server) },
		"half-closed inside":         func(_ *testing.T, c, _ *net.TCPConn) { _ = c.CloseWrite() },
		"half-closed outside":        func(_ *testing.T, _, server *net.TCPConn) { _ = server.CloseWrite() },
		"half-closed, stuck outside": func(t *testing.T, c, server *net.TCPConn) { _ = server.CloseWrite(); stuff(t, c) },
		"half-closed, stuck inside":  func(t *testing.T, c, server *net.TCPConn) { _ = c.CloseWrite(); stuff(t, server) },
		"closed inside, stuck":       func(t *testing.T, c, _ *net.TCPConn) { stuff(t, c); _ = c.Close() },
		"closed outside, stuck":      func(t *testing.T, _, server *net.TCPConn) { stuff(t, server); _ = server.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			dial, servers := quiet(t)
			n, ns := open(t, on, Options{Dial: dial})
			c := mustDialIn(t, ns, "tcp", "1.2.3.4:80").(*net.TCPConn)
			prepare(t, c, <-servers)
			mustClose(t, n)
		})
	}
}

// stuckResolver answers when nobody wants to know any more.
type stuckResolver chan struct{}

func (r stuckResolver) Resolve(ctx context.Context, _ dns.Question, _ bool) (*dns.Msg, error) {
	r <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestCloseWhileResolving(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			asked := make(stuckResolver)
			n, ns := open(t, on, Options{Resolver: asked})
			c := &dns.Conn{Conn: mustDialIn(t, ns, network, "192.0.0.1:53")}
			if err := c.WriteMsg(question("a.example.", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			<-asked
			mustClose(t, n)
		})
	}
}

// verbose is a Resolver with as long an answer as there can be.
type verbose chan struct{}

func (r verbose) Resolve(context.Context, dns.Question, bool) (*dns.Msg, error) {
	r <- struct{}{}
	a := &dns.Msg{}
	for range 250 {
		a.Answer = append(a.Answer, &dns.TXT{
			Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeTXT, Class: dns.ClassINET},
			Txt: []string{strings.Repeat("x", 240)},
		})
	}
	return a, nil
}

// A client that sends queries without end and reads no answers delays nobody.
func TestCloseWithUnreadAnswers(t *testing.T) {
	asked := make(verbose)
	n, ns := open(t, on, Options{Resolver: asked})
	c := mustDialIn(t, ns, "tcp", "192.0.0.1:53")
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	const most = 128 // questions on one connection
	for range most {
		if err := (&dns.Conn{Conn: c}).WriteMsg(question("a.example.", dns.TypeTXT)); err != nil {
			t.Fatal(err)
		}
	}
	answered := 0
	for stuck := false; !stuck; {
		select {
		case <-asked:
			answered++
		case <-time.After(testenv.Scale(time.Second)):
			stuck = true
		}
	}
	if answered == most {
		t.Fatal("all answers found room")
	}
	mustClose(t, n)
}

// A sandbox's reset reaches a remote that we cannot write to just now.
func TestTCPResetOfAStuckConnection(t *testing.T) {
	dial, servers := quiet(t)
	n, ns := open(t, on, Options{Dial: dial})
	c := mustDialIn(t, ns, "tcp", "1.2.3.4:80").(*net.TCPConn)
	stuff(t, c)
	server := <-servers
	_ = c.SetLinger(0)
	c.Close()
	eventually(t, "no connection", func() bool { return n.conns.countConns() == 0 })
	if _, err := io.Copy(io.Discard, server); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server read: %v, want connection reset", err)
	}
}

// The same of one that the sandbox has half closed.
func TestTCPResetOfAHalfClosedConnection(t *testing.T) {
	near, far := net.Pipe() // holds nothing
	dial := func(context.Context, string, string) (net.Conn, error) { return near, nil }
	n, ns := open(t, on, Options{Dial: dial})
	c := mustDialIn(t, ns, "tcp", "1.2.3.4:80").(*net.TCPConn)
	if _, err := c.Write(make([]byte, 100<<10)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end has arrived", func() bool { return tcpState(c) == finWait2 })
	_ = c.SetLinger(0)
	c.Close()
	eventually(t, "no connection", func() bool { return n.conns.countConns() == 0 })
	if _, err := far.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the remote wrote: %v, want it closed", err)
	}
}

const finWait2 = 5 // as in the kernel's tcp_states.h

func tcpState(c *net.TCPConn) (state uint8) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	})
	return state
}
