package usernet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// eventList collects events.
type eventList struct {
	mu  sync.Mutex
	all []atoll.NetworkEvent
}

func (l *eventList) addEvent(e atoll.NetworkEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

// describeAll returns the events as text, without those that were described before.
func (l *eventList) describeAll() (texts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.all {
		texts = append(texts, fmt.Sprintf("%s %s [%s] %s %d/%d: %s (%s) %s %d %s",
			e.Protocol, e.Target(), e.Address, e.Verdict, e.Sent, e.Received, e.Reason, e.Opens, e.Rule, e.Status, strings.TrimSpace(e.Method+" "+e.Path)))
	}
	l.all = nil
	return texts
}

// wantEvents waits for events, in any order.
func (l *eventList) wantEvents(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	eventually(t, fmt.Sprintf("events %q", want), func() bool {
		got = append(got, l.describeAll()...)
		return len(got) >= len(want)
	})
	for _, text := range want {
		if !slices.Contains(got, text) {
			t.Errorf("no event %q in %q", text, got)
		}
	}
}

// Each name, connection and request makes one event, with what decided and how much it carried.
func TestEvents(t *testing.T) {
	var events eventList
	i := inspectWith(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET good.example/5", "good.example:22", "*.wild.test", "1.2.3.5"}, Deny: []string{"evil.example"}},
		Options{Report: events.addEvent})
	ask(t, i.ns, "udp", question("evil.example.", dns.TypeA))
	ask(t, i.ns, "udp", question("unknown.test.", dns.TypeA))
	events.wantEvents(t,
		"dns good.example [] allowed 0/0:  () good.example:22 0 ",
		`dns evil.example [] refused 0/0: --deny has "evil.example" () evil.example 0 `,
		"dns unknown.test [] refused 0/0: not in --allow (unknown.test)  0 ")
	c := i.newClient(t, true)
	for _, target := range []string{"/5", "/6"} {
		if _, _, err := i.sendRequest(c, "GET", "https://good.example"+target, ""); err != nil {
			t.Fatal(err)
		}
	}
	events.wantEvents(t,
		"https good.example:443 [1.2.3.4] allowed 0/5:  () GET good.example/5 200 GET /5",
		"https good.example:443 [1.2.3.4] refused 0/0: GET /6 is not in --allow (GET good.example/6)  403 GET /6")
	ssh := mustDialIn(t, i.ns, "tcp", "1.2.3.4:22")
	roundTrip(t, ssh, "hello there, server\r\n")
	ssh.Close()
	if _, err := dialIn(i.ns, "tcp", "1.2.3.5:80"); err == nil {
		t.Error("a port without a server is open")
	}
	if _, err := dialIn(i.ns, "tcp", "1.2.3.6:80"); err == nil {
		t.Error("an address that is not allowed is open")
	}
	events.wantEvents(t,
		"tcp good.example:22 [1.2.3.4] allowed 21/21:  () good.example:22 0 ",
		"tcp 1.2.3.5:80 [1.2.3.5] failed 0/0: tcp 1.2.3.5:80 is not in the test's world () 1.2.3.5 0 ",
		"tcp 1.2.3.6:80 [1.2.3.6] refused 0/0: not in --allow (1.2.3.6)  0 ")
}

// A refused request tells the program how to open it.
func TestAdvice(t *testing.T) {
	i := inspectWith(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET good.example/a"}},
		Options{Advise: func(entry string) string { return "Allow <" + entry + ">" }})
	_, got, err := i.sendRequest(i.newClient(t, false), "POST", "https://good.example/a/b", "")
	if want := "Atoll refused this request: good.example: POST /a/b is not in --allow. Allow <POST good.example/a/b>\n"; got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	q := question("other.test.", dns.TypeA)
	q.SetEdns0(1232, false)
	a := ask(t, i.ns, "udp", q)
	text := ""
	if opt := a.IsEdns0(); opt != nil && len(opt.Option) == 1 {
		text = opt.Option[0].(*dns.EDNS0_EDE).ExtraText
	}
	if want := "Atoll refused this name: not in --allow. Allow <other.test>"; a.Rcode != dns.RcodeNameError || text != want {
		t.Errorf("got %s with %q, want NXDOMAIN with %q", dns.RcodeToString[a.Rcode], text, want)
	}
}

// A new policy is in force at once: for names, for new connections and for those that are open.
func TestSetPolicy(t *testing.T) {
	i := inspect(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET good.example", "good.example:22"}})
	set := func(allow ...string) {
		t.Helper()
		p, err := NewPolicy(atoll.Network{Mode: atoll.NetworkEgress, Allow: allow})
		if err == nil {
			err = i.n.SetPolicy(p)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := i.newClient(t, false)
	wantStatus := func(method, target string, want int) {
		t.Helper()
		if status, _, err := i.sendRequest(c, method, "https://good.example"+target, ""); status != want || err != nil {
			t.Errorf("%s %s: got %d, %v, want %d", method, target, status, err, want)
		}
	}
	ssh := mustDialIn(t, i.ns, "tcp", "1.2.3.4:22")
	roundTrip(t, ssh, "hello there, server\r\n")
	wantStatus("GET", "/1", 200)
	wantStatus("POST", "/1", 403)

	set("GET,POST good.example", "good.example:22", "another.example")
	wantStatus("POST", "/1", 200)
	roundTrip(t, ssh, "still there, server\r\n")
	ask(t, i.ns, "udp", question("another.example.", dns.TypeA))

	// A request that goes on is cut if its rule has gone.
	resp, err := c.Get(fmt.Sprintf("https://good.example/%d", 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	set("GET good.example/1", "another.example")
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("a request that is refused now got %d bytes to its end", n)
	}
	wantClosed(t, ssh)
	wantStatus("GET", "/1", 200)
	wantStatus("GET", "/2", 403)

	// A connection whose requests the policy wants to see now does not go on.
	set("good.example")
	passed := i.newClient(t, false)
	if status, _, err := i.sendRequest(passed, "GET", "https://good.example/2", ""); status != 200 || err != nil {
		t.Errorf("TLS that passes: got %d, %v", status, err)
	}
	set("GET good.example/1")
	if status, _, err := i.sendRequest(passed, "POST", "https://good.example/2", ""); err == nil && status != 403 {
		t.Errorf("TLS that passed before goes on: %d", status)
	}
}

// wantClosed fails if the other side does not end the connection.
func wantClosed(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection goes on")
	}
}

// With mode on, the first rule about names ends the connections whose names are not known. Flows of UDP end, too.
func TestSetPolicyOn(t *testing.T) {
	n, ns := open(t, on, Options{Dial: world{"tcp 1.2.3.4:443": serveTCP(t, echo), "udp 1.2.3.4:9": serveUDP(t), "udp 1.2.3.5:9": serveUDP(t)}.dial})
	tcp, udp, other := mustDialIn(t, ns, "tcp", "1.2.3.4:443"), mustDialIn(t, ns, "udp", "1.2.3.4:9"), mustDialIn(t, ns, "udp", "1.2.3.5:9")
	for _, c := range []net.Conn{tcp, udp, other} {
		roundTrip(t, c, "hello")
	}
	set := func(nw atoll.Network) {
		t.Helper()
		nw.Mode = atoll.NetworkOn
		p, err := NewPolicy(nw)
		if err == nil {
			err = n.SetPolicy(p)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	set(atoll.Network{Deny: []string{"1.2.3.5"}})
	roundTrip(t, tcp, "still there")
	roundTrip(t, udp, "still there")
	eventually(t, "one flow is left", func() bool { return openFlows(n) == 1 })
	set(atoll.Network{Deny: []string{"evil.example"}})
	wantClosed(t, tcp)
	eventually(t, "no flow is left", func() bool { return openFlows(n) == 0 })

	p, err := NewPolicy(atoll.Network{Mode: atoll.NetworkOn, Deny: []string{"GET evil.example"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.SetPolicy(p); !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), "at its start") {
		t.Errorf("rules for requests without an authority: got %v", err)
	}
}

// No connection that a new policy refuses goes on, whenever the change comes.
func TestSetPolicyRaces(t *testing.T) {
	n, ns := open(t, on, Options{Dial: world{"tcp 1.2.3.4:443": serveTCP(t, echo)}.dial})
	free, err := NewPolicy(on)
	if err != nil {
		t.Fatal(err)
	}
	none, err := NewPolicy(atoll.Network{Mode: atoll.NetworkEgress})
	if err != nil {
		t.Fatal(err)
	}
	rounds := 20
	if testenv.RunAll() {
		rounds = 200
	}
	for range rounds {
		if err := n.SetPolicy(free); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				c, err := dialIn(ns, "tcp", "1.2.3.4:443")
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = io.Copy(io.Discard, c) // until it is reset
			})
		}
		if err := n.SetPolicy(none); err != nil {
			t.Fatal(err)
		}
		all.Wait()
	}
}
