//go:build linux

package modal_test

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// A published port gets a tunnel of Modal, with TLS or without, and another one after each
// start.
func TestTunnels(t *testing.T) {
	for kind, dial := range map[modal.Tunnels]func(address string) (net.Conn, error){
		modal.TunnelsTCP: func(address string) (net.Conn, error) { return net.Dial("tcp", address) },
		modal.TunnelsTLS: func(address string) (net.Conn, error) {
			return tls.Dial("tcp", address, &tls.Config{RootCAs: need(t).server.Certificates()})
		},
	} {
		t.Run(string(kind), func(t *testing.T) {
			p := provider(t, func(o *modal.Options) { o.Tunnels, o.Image = kind, busybox(t) })
			if !p.Info().Caps.Publish {
				t.Error("it has no support for published ports")
			}
			sb := created(t, p, atoll.Spec{
				Network: atoll.Network{Mode: atoll.NetworkOn}, Ports: []atoll.Port{{Port: 8080, Publish: true}},
				Cmd: []string{"python3", "-c", "", "0.0.0.0", "8080", "serve"},
			})
			first := tunnel(t, sb)
			echoes(t, dial, first)
			if err := sb.Stop(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if conn, err := net.Dial("tcp", first); err == nil {
				conn.Close()
				t.Errorf("there is still a tunnel at %s", first)
			}
			if err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			echoes(t, dial, tunnel(t, sb))
		})
	}
}

// tunnel returns the address of the one port of a sandbox.
func tunnel(t *testing.T, sb atoll.Sandbox) string {
	t.Helper()
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Ports) != 1 || st.Ports[0].Port != 8080 {
		t.Fatalf("the published ports are %+v", st.Ports)
	}
	return st.Ports[0].Address
}

// echoes waits for an answer of the server at that address.
func echoes(t *testing.T, dial func(string) (net.Conn, error), address string) {
	t.Helper()
	var got string
	becomes(t, "something answers", 20*time.Second, func() bool { // the server may still be starting
		conn, err := dial(address)
		if err != nil {
			return false
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testenv.Scale(5 * time.Second)))
		if _, err := io.WriteString(conn, "hello\n"); err != nil {
			return false
		}
		answer := make([]byte, 6)
		n, _ := io.ReadFull(conn, answer)
		got = string(answer[:n])
		return n > 0
	})
	if got != "hello\n" {
		t.Errorf("it answers %q", got)
	}
}
