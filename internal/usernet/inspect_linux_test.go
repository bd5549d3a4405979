package usernet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gateway"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// An inspected is a sandbox's network with rules, and a server of TLS for all names at 1.2.3.4.
type inspected struct {
	n       *Network
	ns      *Namespace
	roots   *x509.CertPool
	refused refusalList
}

func mustAuthority(tb testing.TB) (*gateway.Authority, *x509.CertPool) {
	tb.Helper()
	a, err := gateway.OpenAuthority(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Certificate())
	return a, pool
}

// inspect returns a network with a policy. The server answers GET /N with N bytes, and other requests with the Authorization header.
func inspect(tb testing.TB, nw atoll.Network, secrets ...atoll.Secret) *inspected {
	tb.Helper()
	return inspectWith(tb, nw, Options{}, secrets...)
}

func inspectWith(tb testing.TB, nw atoll.Network, opts Options, secrets ...atoll.Secret) *inspected {
	tb.Helper()
	outside, roots := mustAuthority(tb)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/")); err == nil && r.Method == "GET" {
			w.Header().Set("Content-Length", strconv.Itoa(n))
			_, _ = io.CopyN(w, zeros{}, int64(n))
			return
		}
		fmt.Fprint(w, r.Header.Get("Authorization"))
	}))
	s.EnableHTTP2, s.TLS = true, &tls.Config{GetCertificate: outside.GetCertificate}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	tb.Cleanup(s.Close)
	i := &inspected{}
	var authority *gateway.Authority
	authority, i.roots = mustAuthority(tb)
	i.roots.AppendCertsFromPEM(outside.Certificate()) // of connections that pass
	w := world{"tcp 1.2.3.4:443": s.Listener.Addr().String(), "udp 1.2.3.4:443": serveUDP(tb), "tcp 1.2.3.4:22": serveTCP(tb, echo)}
	ns := need(tb)
	policy, err := NewPolicy(nw, secrets...)
	if err != nil {
		tb.Fatal(err)
	}
	i.ns = ns
	opts.Policy, opts.Dial, opts.Resolver, opts.Authority, opts.Roots = policy, w.dial, manyZone, authority, roots
	opts.Value = func(string) (string, error) { return "the value", nil }
	if opts.Report == nil {
		opts.Report = i.refused.addEvent
	}
	i.n, err = New(ns.Link(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := i.n.Close(); err != nil {
			tb.Error(err)
		}
	})
	ask(tb, ns, "udp", question("good.example.", dns.TypeA))
	return i
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// newClient returns a client inside, for which all names have the address 1.2.3.4.
func (i *inspected) newClient(tb testing.TB, http2 bool) *http.Client {
	tb.Helper()
	transport := &http.Transport{
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(address)
			return dialIn(i.ns, network, "1.2.3.4:"+port)
		},
		TLSClientConfig: &tls.Config{RootCAs: i.roots}, ForceAttemptHTTP2: http2, DisableCompression: true, MaxIdleConnsPerHost: 10000,
	}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: testenv.Scale(time.Minute)}
}

func (i *inspected) sendRequest(c *http.Client, method, url, authorization string) (int, string, error) {
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", authorization)
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// A network looks at the requests to a host that a rule names, and lets nothing but these pass to it.
func TestInspect(t *testing.T) {
	const placeholder = "placeholder-0123456789"
	i := inspect(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET,POST good.example"}}, atoll.Secret{Name: "KEY", Hosts: []string{"good.example"}, Placeholder: placeholder})
	for _, http2 := range []bool{false, true} {
		c := i.newClient(t, http2)
		if status, got, err := i.sendRequest(c, "POST", "https://good.example/x", "Bearer "+placeholder); status != 200 || got != "Bearer the value" || err != nil {
			t.Errorf("POST: got %d %q, %v", status, got, err)
		}
		if status, got, err := i.sendRequest(c, "PUT", "https://good.example/x", ""); status != 403 || !strings.Contains(got, "PUT /x is not in --allow") || err != nil {
			t.Errorf("PUT: got %d %q, %v", status, got, err)
		}
		if _, _, err := i.sendRequest(c, "GET", "https://evil.example/x", ""); err == nil {
			t.Error("another name passes")
		}
	}
	i.refused.takeAll()
	c := mustDialIn(t, i.ns, "tcp", "1.2.3.4:22")
	_, _ = io.WriteString(c, "hello over there\r\n")
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a protocol that is not HTTP passes")
	}
	u := mustDialIn(t, i.ns, "udp", "1.2.3.4:443")
	_, _ = io.WriteString(u, "hello")
	if _, err := u.Read(make([]byte, 1)); err == nil {
		t.Error("UDP passes")
	}
	protocols := map[string]bool{}
	eventually(t, "refusals of TCP and UDP", func() bool {
		for _, r := range i.refused.takeAll() {
			protocols[r.Protocol] = strings.Contains(r.Reason, "requests of HTTP to this host only")
		}
		return protocols["tcp"] && protocols["udp"]
	})
}

// A port that is not listed is closed, and the reason says how to open it.
func TestPorts(t *testing.T) {
	i := inspect(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"good.example:443"}})
	if status, _, err := i.sendRequest(i.newClient(t, false), "GET", "https://good.example/", ""); status != 200 || err != nil {
		t.Errorf("its port: got %d, %v", status, err)
	}
	if _, err := dialIn(i.ns, "tcp", "1.2.3.4:22"); err == nil {
		t.Error("another port is open")
	}
	if all := i.refused.takeAll(); len(all) != 1 || !strings.Contains(all[0].Reason, "--allow good.example:22 opens it") {
		t.Errorf("refused %+v", all)
	}
}

// Two thousand requests at once, with each its own connection, are all served.
func TestManyInspected(t *testing.T) {
	if !testenv.RunAll() {
		t.Skip("it is long")
	}
	i := inspect(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET good.example"}})
	c := i.newClient(t, false)
	c.Timeout = testenv.Scale(5 * time.Minute)
	var all sync.WaitGroup
	for range 2000 {
		all.Go(func() {
			if status, _, err := i.sendRequest(c, "GET", "https://good.example/100", ""); status != 200 || err != nil {
				t.Errorf("got %d, %v", status, err)
			}
		})
	}
	all.Wait()
}

// BenchmarkInspected compares a host whose requests the gateway looks at with one that passes: a request on an open connection, a new
// connection, and a download of 64 MiB.
func BenchmarkInspected(b *testing.B) {
	for _, http2 := range []bool{false, true} {
		protocol := map[bool]string{false: "http1", true: "http2"}[http2]
		for _, c := range []struct {
			name string
			size int
			keep bool
		}{{"kept", 100, true}, {"new", 100, false}, {"download", 64 << 20, true}} {
			b.Run(protocol+"/"+c.name, func(b *testing.B) {
				var clients [2]*http.Client
				for k, allow := range []string{"GET good.example", "good.example"} {
					i := inspect(b, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{allow}})
					clients[k] = i.newClient(b, http2)
					clients[k].Transport.(*http.Transport).DisableKeepAlives = !c.keep
				}
				var times [2][]time.Duration
				for b.Loop() {
					for k, client := range clients {
						start := time.Now()
						resp, err := client.Get(fmt.Sprintf("https://good.example/%d", c.size))
						if err != nil {
							b.Fatal(err)
						}
						if n, err := io.Copy(io.Discard, resp.Body); n != int64(c.size) || err != nil {
							b.Fatalf("got %d bytes, %v", n, err)
						}
						resp.Body.Close()
						times[k] = append(times[k], time.Since(start))
					}
				}
				inspected, passed := median(times[0]), median(times[1])
				b.ReportMetric(float64(inspected.Nanoseconds())/1e3, "inspected-us")
				b.ReportMetric(float64(passed.Nanoseconds())/1e3, "passed-us")
				b.ReportMetric(float64(inspected-passed)/1e3, "added-us")
				b.ReportMetric(float64(passed)/float64(inspected), "speed-ratio")
				b.ReportMetric(0, "ns/op") // of both together: means nothing
			})
		}
	}
}
