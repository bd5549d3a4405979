package providertest

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// netLogPromises belong to the group "network".
var netLogPromises = []promise{
	{"NetworkLog lists what was refused and what passed, also after Stop", []need{needNetworkLog, needEgress, needIsolation, needRestart}, func(t *testing.T, h *harness) {
		addr := serveOutside(t)
		sb := h.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{addr.Addr().String()}}})
		h.resolveName(t, sb, "refused.example")
		if err := h.connectFromInside(t, sb, addr.Addr().String(), int(addr.Port())); err != nil {
			t.Fatalf("an allowed address: %v", err)
		}
		h.checkUnreachable(t, sb, "198.51.100.8:7")
		find := func(log atoll.NetworkLog, target string) (e atoll.NetworkEvent) {
			for _, e := range log.Events {
				if e.Target() == target {
					return e
				}
			}
			return e
		}
		log := h.awaitEvents(t, sb, func(log atoll.NetworkLog) bool {
			return find(log, "refused.example").ID > 0 && find(log, addr.String()).ID > 0 && find(log, "198.51.100.8:7").ID > 0
		})
		if e := find(log, "refused.example"); e.Protocol != "dns" || e.Verdict != atoll.NetworkRefused || e.Opens != "refused.example" {
			t.Errorf("the refused name: %+v", e)
		}
		if e := find(log, addr.String()); e.Protocol != "tcp" || e.Verdict != atoll.NetworkAllowed || e.Rule != addr.Addr().String() {
			t.Errorf("the allowed address: %+v", e)
		}
		if e := find(log, "198.51.100.8:7"); e.Verdict != atoll.NetworkRefused || e.Reason == "" {
			t.Errorf("the refused address: %+v", e)
		}
		if log.Refused < 2 || log.Allowed < 1 || log.Last < 3 {
			t.Errorf("counts: %+v", log)
		}
		rest, err := atoll.NetworkLogOf(h.newContext(t), sb, log.Last, 10*time.Millisecond)
		if err != nil || len(rest.Events) > 0 {
			t.Errorf("after the last event: %+v, %v", rest.Events, err)
		}
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		stopped, err := atoll.NetworkLogOf(h.newContext(t), sb, 0, time.Minute)
		if err != nil || stopped.Last < log.Last || stopped.Refused < log.Refused || !slices.EqualFunc(stopped.Events[:len(log.Events)], log.Events, sameEvent) {
			t.Errorf("stopped: %+v, %v, want %+v", stopped, err, log)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.checkUnreachable(t, sb, "198.51.100.9:7")
		h.awaitEvents(t, sb, func(again atoll.NetworkLog) bool { return find(again, "198.51.100.9:7").ID > log.Last })
	}},
	{"UpdateNetwork opens and closes addresses, now and for later starts", []need{needNetworkUpdate, needEgress, needIsolation, needRestart}, func(t *testing.T, h *harness) {
		addr := listenOutside(t)[0]
		closed := atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"198.51.100.7"}}
		open := atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{addr.Addr().String()}}
		sb := h.createSandbox(t, atoll.Spec{Network: closed})
		h.checkUnreachable(t, sb, addr.String())
		update := func(change atoll.NetworkChange) error { return atoll.UpdateNetwork(h.newContext(t), sb, change) }
		if err := update(atoll.NetworkChange{Network: open, Previous: &closed}); err != nil {
			t.Fatalf("UpdateNetwork: %v", err)
		}
		h.checkReachable(t, sb, addr)
		wantKind(t, "UpdateNetwork of another policy", update(atoll.NetworkChange{Network: closed, Previous: &closed}), atoll.ErrConflict)
		for _, bad := range []atoll.Network{
			{}, {Mode: atoll.NetworkNone}, {Mode: atoll.NetworkEgress, Allow: []string{"https://a.example"}}, {Mode: atoll.NetworkEgress, Allow: []string{"127.0.0.1"}},
		} {
			wantKind(t, "UpdateNetwork with a bad policy", update(atoll.NetworkChange{Network: bad}), atoll.ErrInvalid)
		}
		h.checkReachable(t, sb, addr)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.checkReachable(t, sb, addr)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := update(atoll.NetworkChange{Network: closed}); err != nil {
			t.Fatalf("UpdateNetwork of a stopped sandbox: %v", err)
		}
		wantKind(t, "UpdateNetwork of a stopped sandbox with a bad policy", update(atoll.NetworkChange{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"a b"}}}), atoll.ErrInvalid)
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.checkUnreachable(t, sb, addr.String())
		st, err := sb.Status(h.newContext(t))
		if err != nil || !st.Spec.Network.Equal(&closed) {
			t.Errorf("the status has %+v, %v", st.Spec.Network, err)
		}
	}},
	{"UpdateNetwork gives no network to a sandbox without one", []need{needNetworkUpdate, needNoNet}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		err := atoll.UpdateNetwork(h.newContext(t), sb, atoll.NetworkChange{Network: atoll.Network{Mode: atoll.NetworkOn}})
		wantKind(t, "UpdateNetwork", err, atoll.ErrInvalid)
	}},
}

// serveOutside returns the address of a server on this machine that ends each connection.
func serveOutside(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(listenOutside(t)[0].Addr(), 0)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// sameEvent reports whether two events are the same.
func sameEvent(a, b atoll.NetworkEvent) bool {
	equal := a.Time.Equal(b.Time)
	a.Time = b.Time
	return equal && a == b
}

// awaitEvents returns the log of the network when ok is true for it, and checks that it does not contradict itself.
func (h *harness) awaitEvents(t *testing.T, sb atoll.Sandbox, ok func(atoll.NetworkLog) bool) atoll.NetworkLog {
	t.Helper()
	for deadline := time.Now().Add(testenv.Scale(20 * time.Second)); ; {
		log, err := atoll.NetworkLogOf(h.newContext(t), sb, 0, time.Second)
		if err != nil {
			t.Fatalf("NetworkLogOf: %v", err)
		}
		for i, e := range log.Events {
			if e.ID != log.First+int64(i) || e.Time.IsZero() || !strings.Contains("dns tcp tls udp http https", e.Protocol) {
				t.Errorf("event %d: %+v", i, e)
			}
		}
		if ok(log) {
			return log
		}
		if time.Now().After(deadline) {
			t.Fatalf("the events do not come: %+v", log)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
