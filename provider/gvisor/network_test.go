//go:build linux

package gvisor_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// hostServer sends the text to every client that connects to an address of this machine
// that is not loopback, and returns that address.
func hostServer(t *testing.T, text []byte) *net.TCPAddr {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLoopback() || n.IP.To4() == nil || n.IP.IsLinkLocalUnicast() {
			continue
		}
		s, err := net.Listen("tcp4", net.JoinHostPort(n.IP.String(), "0"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = c.Write(text)
				}()
			}
		}()
		return s.Addr().(*net.TCPAddr)
	}
	t.Skip("this machine has no address but loopback")
	return nil
}

// A sandbox with a network reaches what its policy allows, as long as it lives: also after
// a stop and a start, and after a snapshot is restored. The rest of the host is unreachable
// at once.
func TestNetworkOn(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	addr := hostServer(t, text)
	want := fmt.Sprintf("%x", sha256.Sum256(text))
	for name, network := range map[string]atoll.Network{
		"on":     {Mode: atoll.NetworkOn, Allow: []string{addr.IP.String()}},
		"egress": {Mode: atoll.NetworkEgress, Allow: []string{addr.IP.String()}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			spec := atoll.Spec{Network: network, Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}}
			sb := l.NewSandbox(spec)
			check := func(when string, sb atoll.Sandbox) {
				t.Helper()
				sum := sha256.New()
				cmd := supervisedtest.ProgramCommand("dial", "tcp", addr.String())
				cmd.Stdout = sum
				begun := time.Now()
				if err := atoll.Run(l.Context(), sb, cmd); err != nil || fmt.Sprintf("%x", sum.Sum(nil)) != want {
					t.Errorf("%s: what came from %s is not what was sent: %v", when, addr, err)
				}
				t.Logf("%s: %d MiB in %v", when, len(text)>>20, time.Since(begun).Round(time.Millisecond))
			}
			check("created", sb)
			for _, refused := range []string{"127.0.0.1:1", "169.254.169.254:80", "10.255.255.1:80", "[::1]:80"} {
				begun := time.Now()
				err := atoll.Run(l.Context(), sb, supervisedtest.ProgramCommand("dial", "tcp", refused))
				if took := time.Since(begun); err == nil || took > testenv.Scale(10*time.Second) {
					t.Errorf("%s: %v after %v", refused, err, took)
				}
			}
			resolv := l.Sh(sb, "cat /etc/resolv.conf")
			if !strings.HasPrefix(resolv, "nameserver ") || strings.Contains(resolv, "127.") {
				t.Errorf("resolv.conf: %q", resolv)
			}
			l.Must("stop", sb.Stop(l.Context(), 0))
			l.Must("start", sb.Start(l.Context()))
			check("stopped and started", sb)
			snap, err := atoll.TakeSnapshot(l.Context(), sb)
			l.Must("snapshot", err)
			check("after a snapshot", sb)
			spec.Snapshot = snap.ID
			check("restored", l.NewSandbox(spec))
			l.Must("remove snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID))
		})
	}
}

// Without a network a sandbox has a loopback interface, and no other.
func TestNetworkNone(t *testing.T) {
	addr := hostServer(t, []byte("secret"))
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}})
	if got := l.Sh(sb, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' \\n'"); got != "lo" {
		t.Errorf("interfaces: %s", got)
	}
	out := &supervisedtest.Screen{}
	cmd := supervisedtest.ProgramCommand("dial", "tcp", addr.String())
	cmd.Stdout, cmd.Stderr = out, io.Discard
	if err := atoll.Run(l.Context(), sb, cmd); err == nil || out.String() != "" {
		t.Errorf("the host is reachable: %q, %v", out, err)
	}
	l.Sh(sb, "! test -e /etc/resolv.conf")
}
