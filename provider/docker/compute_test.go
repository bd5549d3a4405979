//go:build linux

package docker_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/agent/jobs/jobstest"
)

// Jobs on a Docker Engine pass the suite of all backends.
func TestCompute(t *testing.T) {
	p := openForTest(t)
	on := atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkNamed, Name: openNetwork}}
	gateway := gatewayOf(t, p, on)
	jobstest.Run(t, jobs.Sandboxes(p, nil), jobstest.Options{
		SpecOn: on, NoImage: serveRegistry(t).Host + "/none:1", Reach: startGreeter(t, gateway+":0"), Loopback: true,
		Held: func(t *testing.T) (held []string) {
			all, err := p.List(context.Background(), atoll.Filter{})
			if err != nil {
				t.Fatal(err)
			}
			for _, st := range all {
				held = append(held, st.ID)
			}
			return held
		},
	})
}

// gatewayOf returns the address of the engine's machine, as sandboxes with that spec see it.
func gatewayOf(t *testing.T, p atoll.Provider, spec atoll.Spec) string {
	t.Helper()
	sb, err := p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.WithoutCancel(t.Context()), atoll.RemoveVolumes())
	return runShell(t, sb, `ip route | sed -n 's/^default via \([^ ]*\).*/\1/p'`)
}

// startGreeter starts a TCP server on the engine's machine, and returns its address.
func startGreeter(t *testing.T, address string) string {
	t.Helper()
	var l net.Listener
	err := engine.Inside(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello\n")
			conn.Close()
		}
	}()
	return l.Addr().String()
}
