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

// named are the promises about networks of the backend's own, and about ports
// that are published.
var named = []promise{
	{"a named network that is not there is ErrNotExist, and named", []need{needNamed}, func(t *testing.T, h *harness) {
		spec := atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkNamed, Name: "no-such-network"}}
		h.refused(t, spec, atoll.ErrNotExist)
		if _, err := h.p.Create(h.ctx(t), h.spec(spec)); err == nil || !strings.Contains(err.Error(), "no-such-network") {
			t.Errorf("Create: %v, want the network's name in it", err)
		}
	}},
	{"on a named network there is more than loopback, without one there is not", []need{needNamed, needNoNet, needNetwork}, func(t *testing.T, h *harness) {
		if got := h.interfaces(t, h.idle(t)); !slices.Equal(got, []string{"lo"}) {
			t.Errorf("without a network there are %q", got)
		}
		sb := h.create(t, atoll.Spec{Network: h.named()})
		if got := h.interfaces(t, sb); len(got) < 2 {
			t.Errorf("on a network there are %q", got)
		}
		if !h.p.Info().Caps.Restart {
			return
		}
		if err := sb.Stop(h.ctx(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if got := h.interfaces(t, sb); len(got) < 2 {
			t.Errorf("started again there are %q", got)
		}
	}},
	{"nothing is published that was not asked for", []need{needPublish}, func(t *testing.T, h *harness) {
		st := h.status(t, h.create(t, atoll.Spec{Ports: []atoll.Port{{Port: atoll.AgentPort}}}))
		if len(st.Ports) > 0 || st.Address != "" {
			t.Errorf("Status has ports %+v and address %q", st.Ports, st.Address)
		}
	}},
	{"a published port can be reached where Status says, as long as the sandbox runs", []need{needPublish, needNetwork}, func(t *testing.T, h *harness) {
		sb := h.create(t, atoll.Spec{Network: h.any(), Ports: []atoll.Port{{Port: atoll.AgentPort, Publish: true}, {Port: 80}}})
		h.echoes(t, sb)
		if !h.p.Info().Caps.Restart {
			return
		}
		if err := sb.Stop(h.ctx(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if st := h.status(t, sb); len(st.Ports) > 0 || st.Address != "" {
			t.Errorf("stopped, Status has ports %+v and address %q", st.Ports, st.Address)
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.echoes(t, sb)
	}},
	{"a host port is the one that was asked for, and one sandbox's only", []need{needPublish, needNetwork}, func(t *testing.T, h *harness) {
		const hostPort = 40888
		spec := atoll.Spec{Network: h.any(), Ports: []atoll.Port{{Port: 80, Publish: true, HostPort: hostPort}}}
		sb := h.create(t, spec)
		want := []atoll.PublishedPort{{Port: 80, Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(hostPort))}}
		if st := h.status(t, sb); !slices.Equal(st.Ports, want) || st.Address != "" {
			t.Errorf("Status has ports %+v and address %q, want %+v and none", st.Ports, st.Address, want)
		}
		h.refused(t, spec, atoll.ErrConflict)
		if err := sb.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		h.create(t, spec)
	}},
	{"a start whose host port is taken is ErrConflict, until it is free", []need{needPublish, needNetwork, needRestart}, func(t *testing.T, h *harness) {
		spec := atoll.Spec{Network: h.any(), Ports: []atoll.Port{{Port: 80, Publish: true, HostPort: 40889}}}
		sb := h.create(t, spec)
		if err := sb.Stop(h.ctx(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		before := h.status(t, sb).State
		other := h.create(t, spec)
		wantKind(t, "Start", sb.Start(h.ctx(t)), atoll.ErrConflict)
		if st := h.status(t, sb); st.State != before {
			t.Errorf("the state is %q (%s), was %q", st.State, st.Reason, before)
		}
		if err := other.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if err := sb.Start(h.ctx(t)); err != nil {
			t.Errorf("Start: %v", err)
		}
	}},
}

// named is a network of the backend's own.
func (h *harness) named() atoll.Network {
	name := "of-the-suite"
	if h.cfg.network != nil {
		name = h.cfg.network.name
	}
	return atoll.Network{Mode: atoll.NetworkNamed, Name: name}
}

// any is a network on which ports can be published, if they can be at all.
func (h *harness) any() atoll.Network {
	if h.p.Info().Caps.NetworkOn {
		return atoll.Network{Mode: atoll.NetworkOn}
	}
	return h.named()
}

// interfaces lists the network interfaces that are up inside.
func (h *harness) interfaces(t *testing.T, sb atoll.Sandbox) []string {
	t.Helper()
	var up []string
	for line := range strings.Lines(h.output(t, sb, program("cat", "/proc/net/dev"))) {
		name, _, ok := strings.Cut(line, ":")
		if ok {
			up = append(up, strings.TrimSpace(name))
		}
	}
	return up
}

// echoes checks that what listens on the agent's port can be reached where the
// status says that it is published.
func (h *harness) echoes(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	st := h.status(t, sb)
	if len(st.Ports) != 1 || st.Ports[0].Port != atoll.AgentPort || st.Address != "http://"+st.Ports[0].Address {
		t.Fatalf("Status has ports %+v and address %q, want the agent's", st.Ports, st.Address)
	}
	host, _, err := net.SplitHostPort(st.Ports[0].Address)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("the address is %q, want one on loopback", st.Ports[0].Address)
	}
	h.start(t, sb, word("listen", atoll.AgentPort))
	h.poll(t, h.short(), func() error { return echo(h.ctx(t), h.cfg.network.dial, st.Ports[0].Address) })
}

// echo sends a word to a server that sends back what it receives.
func echo(ctx context.Context, dial func(context.Context, string) (net.Conn, error), address string) error {
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
