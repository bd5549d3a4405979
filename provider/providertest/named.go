package providertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// namedPromises are the promises about the backend's own networks, and about published ports.
var namedPromises = []promise{
	{"a missing network is ErrNotExist, and the error names it", []need{needNamed}, func(t *testing.T, h *harness) {
		spec := atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkNamed, Name: "no-such-network"}}
		h.wantRefused(t, spec, atoll.ErrNotExist)
		if _, err := h.p.Create(h.newContext(t), h.completeSpec(spec)); err == nil || !strings.Contains(err.Error(), "no-such-network") {
			t.Errorf("Create: %v, want the network's name in it", err)
		}
	}},
	{"a sandbox has more than loopback on a named network only", []need{needNamed, needNoNet, needNetwork}, func(t *testing.T, h *harness) {
		if got := h.listInterfaces(t, h.plainSandbox(t)); !slices.Equal(got, []string{"lo"}) {
			t.Errorf("without a network the interfaces are %q", got)
		}
		sb := h.createSandbox(t, atoll.Spec{Network: h.namedNetwork()})
		if got := h.listInterfaces(t, sb); len(got) < 2 {
			t.Errorf("on a network the interfaces are %q", got)
		}
		if !h.p.Info().Caps.Restart {
			return
		}
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if got := h.listInterfaces(t, sb); len(got) < 2 {
			t.Errorf("after a restart the interfaces are %q", got)
		}
	}},
	{"only requested ports are published", []need{needPublish}, func(t *testing.T, h *harness) {
		st := h.getStatus(t, h.createSandbox(t, atoll.Spec{Ports: []atoll.Port{{Port: atoll.AgentPort}}}))
		if len(st.Ports) > 0 || st.Address != "" {
			t.Errorf("Status has ports %+v and address %q", st.Ports, st.Address)
		}
	}},
	{"a published port can be reached at the address in Status while the sandbox runs", []need{needPublish, needNetwork}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Network: h.publishNetwork(), Ports: []atoll.Port{{Port: atoll.AgentPort, Publish: true}, {Port: 80}}})
		h.checkPublished(t, sb)
		if !h.p.Info().Caps.Restart {
			return
		}
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if st := h.getStatus(t, sb); len(st.Ports) > 0 || st.Address != "" {
			t.Errorf("stopped, Status has ports %+v and address %q", st.Ports, st.Address)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.checkPublished(t, sb)
	}},
	{"a host port is the requested one, and belongs to one sandbox", []need{needPublish, needNetwork}, func(t *testing.T, h *harness) {
		const hostPort = 40888
		spec := atoll.Spec{Network: h.publishNetwork(), Ports: []atoll.Port{{Port: 80, Publish: true, HostPort: hostPort}}}
		sb := h.createSandbox(t, spec)
		want := []atoll.PublishedPort{{Port: 80, Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(hostPort))}}
		if st := h.getStatus(t, sb); !slices.Equal(st.Ports, want) || st.Address != "" {
			t.Errorf("Status has ports %+v and address %q, want %+v and none", st.Ports, st.Address, want)
		}
		h.wantRefused(t, spec, atoll.ErrConflict)
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		h.createSandbox(t, spec)
	}},
	{"Start returns ErrConflict while its host port is taken", []need{needPublish, needNetwork, needRestart}, func(t *testing.T, h *harness) {
		spec := atoll.Spec{Network: h.publishNetwork(), Ports: []atoll.Port{{Port: 80, Publish: true, HostPort: 40889}}}
		sb := h.createSandbox(t, spec)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		before := h.getStatus(t, sb).State
		other := h.createSandbox(t, spec)
		wantKind(t, "Start", sb.Start(h.newContext(t)), atoll.ErrConflict)
		if st := h.getStatus(t, sb); st.State != before {
			t.Errorf("the state is %q (%s), was %q", st.State, st.Reason, before)
		}
		if err := other.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Errorf("Start: %v", err)
		}
	}},
}

// namedNetwork returns a network of the backend. Without option Network it may not exist.
func (h *harness) namedNetwork() atoll.Network {
	name := "of-the-suite"
	if h.cfg.network != nil {
		name = h.cfg.network.name
	}
	return atoll.Network{Mode: atoll.NetworkNamed, Name: name}
}

// publishNetwork returns a network on which the provider can publish ports.
func (h *harness) publishNetwork() atoll.Network {
	if h.p.Info().Caps.NetworkOn {
		return atoll.Network{Mode: atoll.NetworkOn}
	}
	return h.namedNetwork()
}

// listInterfaces returns the names of the network interfaces inside.
func (h *harness) listInterfaces(t *testing.T, sb atoll.Sandbox) []string {
	t.Helper()
	var up []string
	for line := range strings.Lines(h.runForOutput(t, sb, programCommand("cat", "/proc/net/dev"))) {
		name, _, ok := strings.Cut(line, ":")
		if ok {
			up = append(up, strings.TrimSpace(name))
		}
	}
	return up
}

// checkPublished checks that a server on the agent's port can be reached at the published address.
func (h *harness) checkPublished(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	st := h.getStatus(t, sb)
	if len(st.Ports) != 1 || st.Ports[0].Port != atoll.AgentPort || st.Address != "http://"+st.Ports[0].Address {
		t.Fatalf("Status has ports %+v and address %q, want the agent's", st.Ports, st.Address)
	}
	host, _, err := net.SplitHostPort(st.Ports[0].Address)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("the address is %q, want one on loopback", st.Ports[0].Address)
	}
	h.startProcess(t, sb, scriptCommand("listen", atoll.AgentPort))
	h.waitUntil(t, h.shortLimit(), func() error { return checkEcho(h.newContext(t), h.cfg.network.dial, st.Ports[0].Address) })
}

// checkEcho sends a text to an echo server and checks the answer.
func checkEcho(ctx context.Context, dial func(context.Context, string) (net.Conn, error), address string) error {
	c, err := dial(ctx, address)
	if err != nil {
		return err
	}
	defer c.Close()
	got := make([]byte, 5)
	_, err = io.WriteString(c, "hello")
	if err == nil {
		_, err = io.ReadFull(c, got)
	}
	if err == nil && !bytes.Equal(got, []byte("hello")) {
		err = fmt.Errorf("the server sent %q", got)
	}
	return err
}
