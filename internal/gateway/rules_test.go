package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
)

// A box is a gateway with rules in front of a server of TLS, which has the names good.example and other.example.
type box struct {
	address   string // at which the gateway is the server
	authority *Authority
	roots     *x509.CertPool // that trust the gateway
	server    *httptest.Server
	values    map[string]string

	mu       sync.Mutex
	events   []atoll.NetworkEvent // guarded by mu
	refused  []string             // guarded by mu
	requests []*http.Request      // that the server got; guarded by mu
	bodies   []string             // guarded by mu
}

// newServer returns a server of TLS with the names good.example, other.example and mirror.example.
func newServer(t *testing.T, a *Authority, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.TLS = &tls.Config{GetCertificate: a.GetCertificate}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func mustAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// echoHandler answers with the request's header, as a server does that mirrors what it gets.
func (b *box) echoHandler(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	b.mu.Lock()
	b.requests, b.bodies = append(b.requests, r), append(b.bodies, string(body))
	b.mu.Unlock()
	w.Header().Set("X-Mirror", r.Header.Get("X-Key"))
	fmt.Fprintf(w, "%s %s %s %s", r.Proto, r.Host, r.RequestURI, r.Header.Get("X-Key"))
}

func newBox(t *testing.T, nw atoll.Network, secrets []atoll.Secret, h func(*box) http.Handler) *box {
	t.Helper()
	b := &box{authority: mustAuthority(t), values: map[string]string{"KEY": realKey}}
	outside := mustAuthority(t)
	handler := http.Handler(http.HandlerFunc(b.echoHandler))
	if h != nil {
		handler = h(b)
	}
	b.server = newServer(t, outside, handler)
	rules, err := egress.New(nw, secrets)
	if err != nil {
		t.Fatal(err)
	}
	pool := func(a *Authority) *x509.CertPool {
		p := x509.NewCertPool()
		p.AppendCertsFromPEM(a.Certificate())
		return p
	}
	b.roots = pool(b.authority)
	g := New(Options{
		Rules: rules, Authority: b.authority, Roots: pool(outside),
		Dial: func(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", dst.String())
		},
		DialHost: func(ctx context.Context, address string) (net.Conn, error) {
			if address != "mirror.example:443" {
				return nil, fmt.Errorf("dial %s", address)
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", b.server.Listener.Addr().String())
		},
		Value: func(name string) (string, error) {
			if v := b.values[name]; v != "" {
				return v, nil
			}
			return "", errors.New("the store is down")
		},
		Report: func(e atoll.NetworkEvent) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, e)
			if e.Verdict == atoll.NetworkRefused {
				b.refused = append(b.refused, e.Host+": "+e.Reason)
			}
		},
	})
	b.serveGateway(t, g)
	return b
}

// serveGateway serves connections by the gateway, until the test ends.
func (b *box) serveGateway(t *testing.T, g *Gateway) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = l.Addr().String()
	ctx, end := context.WithCancel(context.Background())
	to := Target{Addr: netip.MustParseAddrPort("127.0.0.1:443"), CheckHost: func(string) (reason, opens string) { return "", "" }}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer client.Close()
				server, err := net.Dial("tcp", b.server.Listener.Addr().String())
				if err != nil {
					return
				}
				head, err := ReadHead(client, server)
				switch {
				case err != nil:
					server.Close()
				case head.Protocol == TLS:
					g.ServeTLS(ctx, &resettable{client.(*net.TCPConn)}, head, server, to)
				case head.Protocol == HTTP:
					g.ServeHTTP(ctx, &resettable{client.(*net.TCPConn)}, head, server, to)
				default:
					server.Close()
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		end()
		all.Wait()
		g.Close()
	})
}

// newClient returns a client inside, whose connections all lead to the gateway.
func (b *box) newClient(t *testing.T, http2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", b.address)
		},
		TLSClientConfig: &tls.Config{RootCAs: b.roots}, ForceAttemptHTTP2: http2, DisableCompression: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: deadline, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// takeRefused returns the refusals since the last call.
func (b *box) takeRefused() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.refused = nil }()
	return b.refused
}

// lastRequest returns the last request that the server got, and its body.
func (b *box) lastRequest(t *testing.T) (*http.Request, string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) == 0 {
		t.Fatal("the server got no request")
	}
	return b.requests[len(b.requests)-1], b.bodies[len(b.bodies)-1]
}

// countRequests returns the number of requests that the server got.
func (b *box) countRequests() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.requests)
}

const (
	realKey  = "sk-real-0123456789abcdef"
	fakeKey  = "sk-fake-fedcba9876543210"
	goodURL  = "https://good.example"
	otherURL = "https://other.example"
)

var keySecret = atoll.Secret{Name: "KEY", Hosts: []string{"good.example"}, Placeholder: fakeKey}

// send sends a request from inside, and returns the status and the text of the response.
func (b *box) send(t *testing.T, c *http.Client, method, url string, header http.Header, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	if mirrored := resp.Header.Get("X-Mirror"); strings.Contains(mirrored, realKey) {
		t.Errorf("%s %s: the value is in a header of the response", method, url)
	}
	return resp.StatusCode, string(text)
}

// The gateway speaks the client's version of HTTP to the server, and both trust their own authority.
func TestInspect(t *testing.T) {
	b := newBox(t, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"GET good.example/a"}, Deny: []string{"other.example/x"}}, nil, nil)
	byVersion(t, func(t *testing.T, http2 bool) {
		c := b.newClient(t, http2)
		proto := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]
		for range 3 {
			if status, got := b.send(t, c, "GET", goodURL+"/a/b%2fc?x=1;y", nil, ""); status != 200 || got != proto+" good.example /a/b%2fc?x=1;y " {
				t.Errorf("got %d %q", status, got)
			}
		}
		for request, want := range map[string]string{
			"POST " + goodURL + "/a":                 "good.example: POST /a is not in --allow",
			"GET " + goodURL + "/b":                  "good.example: GET /b is not in --allow",
			"GET " + goodURL + "/a/../b":             "good.example: GET /b is not in --allow",
			"GET " + otherURL + "/x/y":               `other.example: --deny has "other.example/x"`,
			"GET " + otherURL + "/%78":               `other.example: --deny has "other.example/x"`,
			"DELETE " + otherURL + "/x?q=1#fragment": `other.example: --deny has "other.example/x"`,
		} {
			b.takeRefused()
			method, url, _ := strings.Cut(request, " ")
			before := b.countRequests()
			status, got := b.send(t, c, method, url, nil, "")
			if status != 403 || got != "Atoll refused this request: "+want+"\n" {
				t.Errorf("%s: got %d %q, want %q", request, status, got, want)
			}
			if all := b.takeRefused(); len(all) != 1 || all[0] != want || b.countRequests() != before {
				t.Errorf("%s: refused %q", request, all)
			}
		}
		if status, got := b.send(t, c, "POST", otherURL+"/y", nil, strings.Repeat("x", 3<<20)); status != 200 || !strings.HasPrefix(got, proto) {
			t.Errorf("POST: got %d %q", status, got)
		}
	})
}

// The host of a request has to be that of its connection.
func TestOtherHostInside(t *testing.T) {
	b := newBox(t, atoll.Network{Allow: []string{"good.example", "other.example"}}, []atoll.Secret{keySecret}, nil)
	byVersion(t, func(t *testing.T, http2 bool) {
		r, _ := http.NewRequest("GET", otherURL, nil)
		r.Host = "good.example"
		r.Header.Set("X-Key", fakeKey)
		resp, err := b.newClient(t, http2).Do(r)
		if got := mustRead(t, resp, err); resp.StatusCode != 403 || !strings.Contains(got, "it is in a connection for other.example") {
			t.Errorf("got %d %q", resp.StatusCode, got)
		}
	})
}

// A server whose certificate is not valid gets no request, and the client learns why.
func TestInvalidCertificate(t *testing.T) {
	b := newBox(t, atoll.Network{Allow: []string{"GET good.example"}}, nil, nil)
	b.server.TLS.GetCertificate = mustAuthority(t).GetCertificate
	byVersion(t, func(t *testing.T, http2 bool) {
		status, got := b.send(t, b.newClient(t, http2), "GET", goodURL, nil, "")
		if status != 403 || !strings.Contains(got, "good.example: its certificate is not valid: x509: certificate signed by unknown authority") {
			t.Errorf("got %d %q", status, got)
		}
		if b.countRequests() != 0 {
			t.Error("the server got the request")
		}
	})
}

// A client that does not trust the gateway, or does not speak HTTP, is reported.
func TestOtherClients(t *testing.T) {
	b := newBox(t, atoll.Network{Allow: []string{"GET good.example"}}, nil, nil)
	for want, config := range map[string]*tls.Config{
		"does not trust the certificate":                 {ServerName: "good.example", RootCAs: x509.NewCertPool()},
		"the connection is not for HTTP: imap, postgres": {ServerName: "good.example", RootCAs: b.roots, NextProtos: []string{"imap", "postgres"}},
	} {
		c, err := tls.Dial("tcp", b.address, config)
		if err == nil {
			c.Close()
			t.Errorf("%s: connected", want)
		}
		for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
			if all := b.takeRefused(); len(all) == 1 && strings.Contains(all[0], want) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("no refusal with %q", want)
			}
		}
	}
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// The value of a secret goes to its hosts, wherever in a header its placeholder is.
func TestSecrets(t *testing.T) {
	b := newBox(t, atoll.Network{Allow: []string{"other.example"}}, []atoll.Secret{keySecret, {Name: "OTHER", Hosts: []string{"other.example"}, Placeholder: strings.Repeat("y", 20)}}, nil)
	byVersion(t, func(t *testing.T, http2 bool) {
		c := b.newClient(t, http2)
		for name, want := range map[string][2]string{
			"X-Key":               {fakeKey, realKey},
			"Authorization":       {"Bearer " + fakeKey, "Bearer " + realKey},
			"Cookie":              {"a=b; key=" + fakeKey, "a=b; key=" + realKey},
			"Proxy-Connection-Id": {fakeKey + "," + fakeKey, realKey + "," + realKey},
		} {
			if status, got := b.send(t, c, "GET", goodURL, http.Header{name: {want[0]}}, ""); status != 200 {
				t.Errorf("%s: got %d %q", name, status, got)
			}
			if r, _ := b.lastRequest(t); r.Header.Get(name) != want[1] {
				t.Errorf("%s: the server got %q", name, r.Header.Get(name))
			}
		}
		b.send(t, c, "GET", goodURL, http.Header{"Authorization": {basic("me", fakeKey)}}, "")
		if r, _ := b.lastRequest(t); r.Header.Get("Authorization") != basic("me", realKey) {
			t.Errorf("basic: the server got %q", r.Header.Get("Authorization"))
		}
		// A body is as it was, also if it has a placeholder: models get what programs print.
		if b.send(t, c, "POST", goodURL, nil, "key "+fakeKey); true {
			if _, body := b.lastRequest(t); body != "key "+fakeKey {
				t.Errorf("the server got the body %q", body)
			}
		}
	})
}

// A request with a placeholder that must not be there does not pass, and says nothing about headers.
func TestMisplacedSecrets(t *testing.T) {
	missing := atoll.Secret{Name: "MISSING", Hosts: []string{"good.example"}, Placeholder: strings.Repeat("m", 20)}
	b := newBox(t, atoll.Network{Allow: []string{"other.example", "good.example"}}, []atoll.Secret{keySecret, missing}, nil)
	header := func(v string) http.Header { return http.Header{"X-Api-Key": {v}} }
	byVersion(t, func(t *testing.T, http2 bool) {
		c := b.newClient(t, http2)
		for _, tt := range []struct {
			name, method, url string
			header            http.Header
			told, reported    string
		}{
			{"another host", "GET", otherURL, header(fakeKey), "the placeholder of a secret is not for this host", "secret KEY is not for this host"},
			{"in basic", "GET", otherURL, http.Header{"Authorization": {basic("x", "y"+fakeKey)}}, "is not for this host", "KEY"},
			{"in a path", "GET", goodURL + "/a/" + fakeKey, nil, "is in the URL", "KEY"},
			{"in a query", "GET", goodURL + "/?key=" + fakeKey, nil, "is in the URL", "KEY"},
			{"escaped", "GET", goodURL + "/" + strings.ReplaceAll(fakeKey, "s", "%73"), nil, "is in the URL", "KEY"},
			{"no value", "GET", goodURL, header(missing.Placeholder), "the placeholder of a secret has no value now", "secret MISSING has no value: the store is down"},
			{"trace", "TRACE", goodURL, nil, "TRACE does not pass", "TRACE"},
		} {
			b.takeRefused()
			before := b.countRequests()
			status, got := b.send(t, c, tt.method, tt.url, tt.header, "")
			if status != 403 || !strings.Contains(got, tt.told) || strings.Contains(strings.ToLower(got), "x-api-key") || strings.Contains(got, "KEY") || strings.Contains(got, realKey) {
				t.Errorf("%s: got %d %q, want %q", tt.name, status, got, tt.told)
			}
			if all := b.takeRefused(); len(all) != 1 || !strings.Contains(all[0], tt.reported) || b.countRequests() != before {
				t.Errorf("%s: refused %q, want %q", tt.name, all, tt.reported)
			}
		}
	})
	// Without TLS, nothing proves that the host is the one.
	r, _ := http.NewRequest("GET", "http://good.example:443/", nil)
	r.Header.Set("X-Key", fakeKey)
	resp, err := b.newClient(t, false).Do(r)
	if got := mustRead(t, resp, err); resp.StatusCode != 403 || !strings.Contains(got, "does not go out without TLS") {
		t.Errorf("without TLS: got %d %q", resp.StatusCode, got)
	}
}

// A new value counts from the next request on.
func TestRotation(t *testing.T) {
	b := newBox(t, atoll.Network{}, []atoll.Secret{keySecret}, nil)
	c := b.newClient(t, true)
	for _, value := range []string{realKey, "another-value", "a longer value than before"} {
		b.values["KEY"] = value
		b.send(t, c, "GET", goodURL, http.Header{"Authorization": {fakeKey}}, "")
		if r, _ := b.lastRequest(t); r.Header.Get("Authorization") != value {
			t.Errorf("the server got %q, want %q", r.Header.Get("Authorization"), value)
		}
	}
}

// With Body, values go into bodies of up to a megabyte, and no placeholder gets out in another one.
func TestSecretBodies(t *testing.T) {
	secret := keySecret
	secret.Body = true
	b := newBox(t, atoll.Network{Allow: []string{"other.example"}, Rules: []atoll.NetworkRule{{Match: "other.example", Redact: true}}}, []atoll.Secret{secret}, nil)
	padding := func(n int) string { return strings.Repeat("x", n) }
	byVersion(t, func(t *testing.T, http2 bool) {
		c := b.newClient(t, http2)
		for _, chunked := range []bool{false, true} {
			for name, body := range map[string]string{
				"none": padding(100), "only": fakeKey, "some": fakeKey + padding(500) + fakeKey + "x", "large": padding(atoll.MaxSecretBody-len(fakeKey)) + fakeKey,
				"too large, without": padding(3 << 20),
			} {
				status, got := b.sendBody(t, c, goodURL, body, chunked)
				if status != 200 {
					t.Errorf("%s: got %d %q", name, status, got)
				}
				if _, body2 := b.lastRequest(t); body2 != strings.ReplaceAll(body, fakeKey, realKey) {
					t.Errorf("%s: the server got %d bytes, want %d", name, len(body2), len(body))
				}
			}
			for name, url := range map[string]string{"too large": goodURL, "another host": otherURL} {
				body := fakeKey
				if url == goodURL {
					body = padding(atoll.MaxSecretBody+31<<10) + fakeKey + padding(1<<20)
				}
				before := b.countRequests()
				if status, got := b.sendBody(t, c, url, body, chunked); status != 403 || !strings.Contains(got, "placeholder of a secret") {
					t.Errorf("%s: got %d %q", name, status, got)
				}
				if b.countRequests() != before {
					t.Errorf("%s: the server got the whole request", name)
				}
			}
		}
	})
}

// sendBody sends a body with its length, or without.
func (b *box) sendBody(t *testing.T, c *http.Client, url, body string, chunked bool) (int, string) {
	t.Helper()
	r, _ := http.NewRequest("POST", url, strings.NewReader(body))
	if chunked {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), -1
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	return resp.StatusCode, mustRead(t, resp, nil)
}

// Rules set headers, parameters and a password, which the sandbox does not have.
func TestInjection(t *testing.T) {
	b := newBox(t, atoll.Network{Rules: []atoll.NetworkRule{
		{Match: "good.example", SetHeaders: map[string]string{"x-key": "Bearer ${KEY}", "X-Team": "a"}, SetQuery: map[string]string{"key": "${KEY}", "v": "1 2"}},
		{Match: "good.example/basic", BasicAuth: "me:${KEY}"},
	}}, []atoll.Secret{keySecret}, nil)
	byVersion(t, func(t *testing.T, http2 bool) {
		b.send(t, b.newClient(t, http2), "GET", goodURL+"/basic?a=1;2&key=mine&%6bey=2", http.Header{"X-Team": {"b", "c"}}, "")
		r, _ := b.lastRequest(t)
		if r.Header.Get("X-Key") != "Bearer "+realKey || len(r.Header["X-Team"]) != 1 || r.Header.Get("X-Team") != "a" || r.Header.Get("Authorization") != basic("me", realKey) {
			t.Errorf("the server got the header %v", r.Header)
		}
		if want := "a=1;2&"; !strings.HasPrefix(r.URL.RawQuery, want) || strings.Count(r.URL.RawQuery, "ey=") != 1 || !strings.Contains(r.URL.RawQuery, "key="+realKey) || !strings.Contains(r.URL.RawQuery, "v=1+2") {
			t.Errorf("the server got the query %q", r.URL.RawQuery)
		}
	})
}

// A server that mirrors a value does not tell the sandbox with a rule, piece by piece.
func TestRedaction(t *testing.T) {
	mirror := func(b *box) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/packed" {
				w.Header().Set("Content-Encoding", "gzip")
			}
			text := r.Header.Get("Accept-Encoding") + " " + r.Header.Get("X-Key") + r.Header.Get("X-Key") + " end"
			for _, c := range []byte(text) {
				_, _ = w.Write([]byte{c})
				_ = http.NewResponseController(w).Flush()
			}
		})
	}
	b := newBox(t, atoll.Network{Rules: []atoll.NetworkRule{{Match: "good.example", Redact: true}}}, []atoll.Secret{keySecret}, mirror)
	byVersion(t, func(t *testing.T, http2 bool) {
		c := b.newClient(t, http2)
		header := func() http.Header { return http.Header{"X-Key": {fakeKey}, "Accept-Encoding": {"gzip"}} }
		if status, got := b.send(t, c, "GET", goodURL, header(), ""); status != 200 || got != "identity "+fakeKey+fakeKey+" end" {
			t.Errorf("got %d %q", status, got)
		}
		if status, got := b.send(t, c, "GET", goodURL+"/packed", header(), ""); status != 403 || !strings.Contains(got, "is encoded") {
			t.Errorf("packed: got %d %q", status, got)
		}
	})
}

func TestLimits(t *testing.T) {
	b := newBox(t, atoll.Network{Rules: []atoll.NetworkRule{{Match: "good.example", RequestsPerMinute: 2}, {Match: "other.example", BytesPerMinute: 60 << 20}}}, nil, nil)
	c := b.newClient(t, true)
	for i := range 4 {
		r, _ := http.NewRequest("GET", goodURL, nil)
		resp, err := c.Do(r)
		got := mustRead(t, resp, err)
		if limited := i >= 2; (resp.StatusCode == 429) != limited || (resp.Header.Get("Retry-After") != "") != limited || strings.Contains(got, "2 requests per minute") != limited {
			t.Errorf("request %d: got %d %q, retry after %q", i, resp.StatusCode, got, resp.Header.Get("Retry-After"))
		}
	}
	before := time.Now()
	b.send(t, c, "POST", otherURL, nil, strings.Repeat("x", 1<<20))
	if took := time.Since(before); took < 500*time.Millisecond {
		t.Errorf("a megabyte at a megabyte per second took %v", took)
	}
}

// A redirected request goes to the mirror, with its path after the mirror's, and gets no secret of the host.
func TestRedirect(t *testing.T) {
	b := newBox(t, atoll.Network{Rules: []atoll.NetworkRule{
		{Match: "good.example/pkg", Redirect: "https://mirror.example/cache/"},
		{Match: "good.example/root", Redirect: "https://mirror.example"},
		{Match: "good.example/gone", Redirect: "http://gone.example"},
	}}, []atoll.Secret{keySecret}, nil)
	byVersion(t, func(t *testing.T, http2 bool) {
		c := b.newClient(t, http2)
		for path, want := range map[string]string{"/pkg/a%2fb?x=1;2": "/cache/pkg/a%2fb?x=1;2", "/root//x": "/root/x", "/other": "/other"} {
			host := "mirror.example"
			if path == "/other" {
				host = "good.example"
			}
			if status, got := b.send(t, c, "GET", goodURL+path, nil, ""); status != 200 || !strings.Contains(strings.ReplaceAll(got, "//x", "/x"), " "+host+" "+want+" ") {
				t.Errorf("%s: got %d %q, want %q", path, status, got, want)
			}
		}
		if status, got := b.send(t, c, "GET", goodURL+"/pkg/a", http.Header{"X-Key": {fakeKey}}, ""); status != 403 || !strings.Contains(got, "not for this host") {
			t.Errorf("with a placeholder: got %d %q", status, got)
		}
		if _, err := c.Get(goodURL + "/gone"); err == nil {
			t.Error("a mirror that is not there answers")
		}
	})
}

// WebSockets pass, with their secrets in the header of the request.
func TestSecureWebSocket(t *testing.T) {
	b := newBox(t, atoll.Network{}, []atoll.Secret{keySecret}, func(*box) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer c.CloseNow()
			c.SetReadLimit(2 << 20)
			_ = c.Write(r.Context(), websocket.MessageText, []byte(r.Header.Get("X-Key")))
			for {
				kind, data, err := c.Read(r.Context())
				if err != nil || c.Write(r.Context(), kind, data) != nil {
					return
				}
			}
		})
	})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://good.example/", &websocket.DialOptions{HTTPClient: b.newClient(t, false), HTTPHeader: http.Header{"X-Key": {fakeKey}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(2 << 20)
	if _, got, err := c.Read(ctx); string(got) != realKey || err != nil {
		t.Errorf("the server got %q, %v", got, err)
	}
	large := bytes.Repeat([]byte("x"), 1<<20)
	if err := c.Write(ctx, websocket.MessageBinary, large); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(ctx); !bytes.Equal(got, large) || err != nil {
		t.Errorf("echo: got %d bytes, %v", len(got), err)
	}
}
