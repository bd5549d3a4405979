//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	. "github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// A bystander is a service of this machine that no registry may reach. It counts
// connections.
type bystander struct {
	port  string
	calls atomic.Int64
}

func newBystander(t *testing.T) *bystander {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bystander{}
	_, b.port, _ = net.SplitHostPort(l.Addr().String())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.calls.Add(1)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret")
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return b
}

// standIn sends requests for host to the registry r, as if it were not on this
// machine. It does not change other requests.
func standIn(s *Store, host string, r *Registry) {
	rest := s.transport
	s.transport = answer(func(req *http.Request) (*http.Response, error) {
		if req.URL.Host != host {
			return rest.RoundTrip(req)
		}
		again := req.Clone(req.Context())
		again.URL.Host, again.URL.Scheme = r.Host, "http"
		resp, err := rest.RoundTrip(again)
		if resp != nil {
			resp.Request = req
		}
		return resp, err
	})
}

// TestInwardRedirects has a registry elsewhere that redirects to services of this
// machine: no request reaches them.
func TestInwardRedirects(t *testing.T) {
	layer := Layer(t, File("f", 0, "x"))
	redirect := func(to string) func(int, http.ResponseWriter, *http.Request) bool {
		return func(_ int, w http.ResponseWriter, req *http.Request) bool {
			http.Redirect(w, req, to, http.StatusTemporaryRedirect)
			return true
		}
	}
	realm := func(to string) func(int, http.ResponseWriter, *http.Request) bool {
		return func(_ int, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"x\"", to))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
	}
	for _, way := range []struct {
		name, part string
		fault      func(to string) func(int, http.ResponseWriter, *http.Request) bool
	}{
		{"the greeting", "/v2/", redirect},
		{"a manifest", "manifests/", redirect},
		{"a layer", "blobs/" + digestOf(t, layer), redirect},
		{"a token", "/v2/", realm},
	} {
		t.Run(way.name, func(t *testing.T) {
			noLeaks(t)
			b := newBystander(t)
			r := Serve(t)
			r.Push("app:1", New(t, v1.Config{}, layer))
			for _, to := range []string{
				"http://localhost:PORT/admin/do", "https://localhost:PORT/", "https://LocalHost:PORT/", "https://127.0.0.1:PORT/",
				"http://127.0.0.1:PORT/", "https://127.1.2.3:PORT/", "https://0.0.0.0:PORT/", "https://[::1]:PORT/",
				"https://[::ffff:127.0.0.1]:PORT/", "https://[::]:PORT/", "https://169.254.169.254/latest/", "http://169.254.169.254/latest/",
				"https://[fe80::1%25lo]:PORT/", "https://[fd00:ec2::254]/",
			} {
				r.Fault(onPath(way.part, way.fault(strings.ReplaceAll(to, "PORT", b.port))))
				s := openStore(t, Options{})
				standIn(s, "registry.example.com", r)
				_, err := s.Get(t.Context(), "registry.example.com/app:1", nil)
				wantKind(t, to, err, atoll.ErrInvalid)
				if err != nil && strings.Contains(err.Error(), "secret") {
					t.Errorf("%s: its answer is in the error: %v", to, err)
				}
			}
			if n := b.calls.Load(); n > 0 {
				t.Errorf("a service of this machine was asked %d times", n)
			}
		})
	}
}

// TestInwardNames has names that resolve to this machine.
func TestInwardNames(t *testing.T) {
	b := newBystander(t)
	s := openStore(t, Options{})
	direct := newExternalTransport()
	dial := direct.DialContext
	direct.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(addr)
		return dial(ctx, network, net.JoinHostPort("localhost", port)) // what DNS says of any name
	}
	s.outward = externalTransport{proxy: noProxy, proxied: noTransport{t}, direct: direct}
	req, err := http.NewRequestWithContext(t.Context(), "GET", "https://blobs.example.com:"+b.port+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = guardTransport{s, "registry.example.com"}.RoundTrip(req)
	if !isInternalAddrError(err) {
		t.Errorf("got %v, want it refused", err)
	}
	if isTransient(&url.Error{Op: "Get", URL: "x", Err: err}) {
		t.Error("it would be tried again")
	}
	if n := b.calls.Load(); n > 0 {
		t.Errorf("a service of this machine was asked %d times", n)
	}
	// The registry itself may be anywhere.
	if _, err = (guardTransport{s, "blobs.example.com:" + b.port}).RoundTrip(req); isInternalAddrError(err) {
		t.Errorf("the registry itself: %v", err)
	}
}

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// TestOutwardByProxy has a proxy on this machine, as they often are.
func TestOutwardByProxy(t *testing.T) {
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodConnect {
			asked.Add(1)
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer proxy.Close()
	own := newTransport()
	defer own.CloseIdleConnections()
	u, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	own.Proxy = http.ProxyURL(u)
	s := openStore(t, Options{})
	s.outward = externalTransport{proxy: own.Proxy, proxied: own, direct: noTransport{t}}
	g := guardTransport{s, "registry.example.com"}
	for _, tt := range []struct {
		url   string
		asked int64
	}{
		{"https://blobs.example.com/x", 1},
		{"https://169.254.169.254/x", 1},
		{"https://127.0.0.1/x", 1},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", tt.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.RoundTrip(req); err == nil {
			t.Errorf("%s: succeeded", tt.url)
		}
		if got := asked.Load(); got != tt.asked {
			t.Errorf("after %s: the proxy was asked %d times, want %d", tt.url, got, tt.asked)
		}
	}
}

// TestPlain checks which hosts a registry may redirect to without TLS, and which
// transport carries the request.
func TestPlain(t *testing.T) {
	var by string
	asks := func(who string) answer {
		return func(*http.Request) (*http.Response, error) {
			by = who
			return nil, errors.New("enough")
		}
	}
	s := openStore(t, Options{Insecure: []string{"listed.example.com", "10.0.0.1:5000"}, Transport: asks("own")})
	s.outward = asks("outward")
	for _, tt := range []struct {
		own, url, by string
	}{
		{"registry.example.com", "https://registry.example.com/v2/", "own"},
		{"registry.example.com", "https://Registry.Example.com:443/v2/", "own"},
		{"registry.example.com:443", "https://registry.example.com/v2/", "own"},
		{"registry.example.com", "https://registry.example.com:8443/v2/", "outward"},
		{"registry.example.com", "http://registry.example.com/v2/", ""},
		{"registry.example.com", "https://auth.example.com/token", "outward"},
		{"registry.example.com", "http://auth.example.com/token", ""},
		{"registry.example.com", "ftp://registry.example.com/x", ""},
		{"registry.example.com", "http://localhost/x", ""},
		{"registry.example.com", "https://localhost/x", ""},
		{"registry.example.com", "https://10.0.0.2/x", "outward"},
		{"registry.example.com", "http://10.0.0.2/x", ""},
		{"192.168.1.5", "https://192.168.1.5/v2/", "own"},
		{"192.168.1.5", "https://192.168.1.6/x", "outward"},
		{"192.168.1.5", "http://192.168.1.5/v2/", ""},
		{"10.0.0.1:5000", "http://10.0.0.1:5000/v2/", "own"},
		{"10.0.0.1:5000", "http://10.0.0.1:5001/v2/", ""},
		{"10.0.0.1:5000", "http://localhost/x", ""},
		{"10.0.0.1:5000", "https://127.0.0.1/x", ""},
		{"registry.example.com", "http://listed.example.com:1/x", "own"},
		{"registry.example.com", "http://Listed.Example.com/x", "own"},
		{"localhost:5000", "http://localhost:5000/v2/", "own"},
		{"localhost:5000", "http://127.0.0.1:9000/x", "own"},
		{"[::1]:5000", "http://[::1]:5000/v2/", "own"},
		{"127.0.0.1:5000", "http://auth.example.com/token", ""},
		{"127.0.0.1:5000", "http://169.254.169.254/latest", ""},
		{"127.0.0.1:5000", "https://169.254.169.254/latest", ""},
		{"127.0.0.1:5000", "https://auth.example.com/token", "outward"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", tt.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		by = ""
		_, err = guardTransport{s, tt.own}.RoundTrip(req)
		if by != tt.by {
			t.Errorf("%s sends us to %s: asked by %q, want %q (%v)", tt.own, tt.url, by, tt.by, err)
		}
	}
}

// TestLocalNeighbours has a registry on this machine that keeps its layers
// elsewhere on it.
func TestLocalNeighbours(t *testing.T) {
	layer := Layer(t, File("f", 0, "x"))
	store := Serve(t)
	store.Push("app:1", New(t, v1.Config{}, layer))
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, layer))
	r.Fault(onPath("blobs/", func(_ int, w http.ResponseWriter, req *http.Request) bool {
		http.Redirect(w, req, "http://"+store.Host+req.URL.Path, http.StatusTemporaryRedirect)
		return true
	}))
	mustGet(t, openStore(t, Options{}), ref)
	if len(store.Gets()) == 0 {
		t.Error("the other one was not asked")
	}
}

func TestInwardAddresses(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "127.255.0.1": true, "0.0.0.0": true, "0.1.2.3": true, "169.254.1.1": true, "224.0.0.1": true,
		"::": true, "::1": true, "fe80::1": true, "fe80::1%eth0": true, "ff02::1": true, "::ffff:127.0.0.1": true,
		"64:ff9b::7f00:1": true, "64:ff9b::a9fe:a9fe": true, "fd00:ec2::254": true, "100.100.100.200": true, "168.63.129.16": true,
		"10.0.0.1": false, "192.168.1.1": false, "172.16.0.1": false, "100.64.0.1": false, "fd00::1": false,
		"8.8.8.8": false, "2001:4860:4860::8888": false, "64:ff9b::808:808": false,
	} {
		if got := isInternalAddr(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: got %v, want %v", addr, got, want)
		}
	}
}
