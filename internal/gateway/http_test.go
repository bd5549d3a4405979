package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// deadline is the time that a step of a test may take.
var deadline = testenv.Scale(20 * time.Second)

// serveHandler returns the address of a server of plain HTTP/1 and HTTP/2.
func serveHandler(t *testing.T, h http.HandlerFunc) netip.AddrPort {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.DisableGeneralOptionsHandler = true
	s.Start()
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

// A countedConn calls leave when it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

func (c *countedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// A resettable is a connection as a gateway gets it.
type resettable struct{ *net.TCPConn }

func (c *resettable) Reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// A rig is a gateway in front of a server, which has the name good.example.
type rig struct {
	address string // at which the gateway is the server
	dst     netip.AddrPort
	dials   atomic.Int32 // connections to the server, in all
	open    atomic.Int32 // at once
	most    atomic.Int32 // at once, so far
	refused atomic.Int32 // requests
	ctx     context.Context
	end     context.CancelFunc // of all connections
	served  chan struct{}      // receives at the end of each connection
}

func newRig(t *testing.T, dst netip.AddrPort) *rig {
	t.Helper()
	r := &rig{dst: dst, served: make(chan struct{}, 1000)}
	r.ctx, r.end = context.WithCancel(context.Background())
	dial := func(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
		r.dials.Add(1)
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", dst.String())
		if err != nil {
			return nil, err
		}
		if open := r.open.Add(1); open > r.most.Load() {
			r.most.Store(open)
		}
		return &countedConn{Conn: c, leave: sync.OnceFunc(func() { r.open.Add(-1) })}, nil
	}
	g := New(Options{
		Dial: dial,
		Report: func(e atoll.NetworkEvent) {
			if e.Verdict != atoll.NetworkRefused {
				return
			}
			if e.Address != r.dst.Addr().String() || e.Port != int(r.dst.Port()) || e.Reason == "" {
				t.Errorf("reported %+v", e)
			}
			r.refused.Add(1)
		},
	})
	to := Target{Addr: dst, CheckHost: func(host string) (reason, opens string) {
		if host == "good.example" {
			return "", ""
		}
		return "not in --allow", host
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	var count atomic.Int32
	go func() {
		defer close(accepted)
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			go func() {
				defer func() { r.served <- struct{}{} }()
				defer client.Close()
				server, err := dial(context.Background(), dst)
				if err != nil {
					return
				}
				head, err := ReadHead(client, server)
				if err != nil || head.Protocol != HTTP {
					server.Close()
					return
				}
				g.ServeHTTP(r.ctx, &resettable{client.(*net.TCPConn)}, head, server, to)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-accepted
		r.end()
		for range count.Load() {
			<-r.served
		}
		for end := time.Now().Add(deadline); r.open.Load() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d connections to the server remain open", r.open.Load())
			}
		}
	})
	r.address = l.Addr().String()
	return r
}

// newClient returns a client that reaches the gateway, whatever the host of its requests.
func (r *rig) newClient(t *testing.T, http2 bool) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", r.address)
		},
		DisableCompression:    true,
		ExpectContinueTimeout: deadline,
		Protocols:             new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: deadline}
}

// byVersion runs a test with HTTP/1 and with HTTP/2.
func byVersion(t *testing.T, f func(t *testing.T, http2 bool)) {
	t.Run("HTTP1", func(t *testing.T) { f(t, false) })
	t.Run("HTTP2", func(t *testing.T) { f(t, true) })
}

func (r *rig) urlFor(host, path string) string {
	return fmt.Sprintf("http://%s:%d%s", host, r.dst.Port(), path)
}

func mustRead(t *testing.T, resp *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A request arrives as the client wrote it, and so does the response.
func TestRequest(t *testing.T) {
	byVersion(t, func(t *testing.T, http2 bool) {
		got := make(chan *http.Request, 1)
		r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
			got <- r
			w.Header()["Date"], w.Header()["Content-Type"] = nil, nil
			w.Header().Set("Set-Cookie", "a=b")
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, "<html>")
		}))
		req, err := http.NewRequest("GET", r.urlFor("good.example", "/@scope%2fname/%7e?a;b=%zz"), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-For", "1.2.3.4")
		req.Header["User-Agent"] = []string{""}
		resp, err := r.newClient(t, http2).Do(req)
		if text := mustRead(t, resp, err); text != "<html>" || resp.StatusCode != http.StatusTeapot || resp.Header.Get("Set-Cookie") != "a=b" {
			t.Errorf("got %s, %v, %q", resp.Status, resp.Header, text)
		}
		if resp.Header.Get("Date") != "" || resp.Header.Get("Content-Type") != "" {
			t.Errorf("the gateway added to the response: %v", resp.Header)
		}
		seen := <-got
		if want := "/@scope%2fname/%7e?a;b=%zz"; seen.RequestURI != want || seen.Host != fmt.Sprintf("good.example:%d", r.dst.Port()) {
			t.Errorf("the server saw %s of %s, want %s", seen.RequestURI, seen.Host, want)
		}
		if want := map[bool]int{false: 1, true: 2}[http2]; seen.ProtoMajor != want {
			t.Errorf("the server saw HTTP/%d, want %d", seen.ProtoMajor, want)
		}
		if want := (http.Header{"X-Forwarded-For": {"1.2.3.4"}}); !reflect.DeepEqual(seen.Header, want) {
			t.Errorf("the server saw %v, want %v", seen.Header, want)
		}
	})
}

// Requests for other hosts do not arrive, whatever came before on the connection, and the client learns why.
func TestOtherHosts(t *testing.T) {
	byVersion(t, func(t *testing.T, http2 bool) {
		var served atomic.Int32
		r := newRig(t, serveHandler(t, func(http.ResponseWriter, *http.Request) { served.Add(1) }))
		client := r.newClient(t, http2)
		for _, host := range []string{"evil.example", "127.0.0.1", "good.example.evil.example"} {
			resp, err := client.Get(r.urlFor("good.example", "/"))
			mustRead(t, resp, err)
			req, err := http.NewRequest("POST", r.urlFor("good.example", "/"), strings.NewReader(strings.Repeat("x", 1<<20)))
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			resp, err = client.Do(req)
			if text := mustRead(t, resp, err); resp.StatusCode != http.StatusForbidden || text != "Atoll refused this request: "+host+": not in --allow\n" {
				t.Errorf("%s: got %s, %q", host, resp.Status, text)
			}
		}
		if got := served.Load(); got != 3 {
			t.Errorf("the server got %d requests, want those for its name", got)
		}
	})
}

// sendText sends text to the gateway, and returns what it answers until it closes the connection.
func (r *rig) sendText(t *testing.T, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(c, strings.ReplaceAll(text, "PORT", fmt.Sprint(r.dst.Port()))); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("%q: %v", text, err)
	}
	return string(answer)
}

// Requests by which programs have got past gateways.
func TestSmuggling(t *testing.T) {
	seen := make(chan string, 10)
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- fmt.Sprintf("%s %s %s %q", r.Method, r.RequestURI, r.Host, body)
		w.Header().Set("Connection", "close")
	}))
	for text, want := range map[string]struct{ status, seen string }{
		"GET http://good.example:PORT/a HTTP/1.1\r\nHost: evil.example\r\n\r\n":               {"200", `GET /a good.example:PORT ""`},
		"GET //evil.example/a HTTP/1.1\r\nHost: good.example\r\n\r\n":                         {"200", `GET //evil.example/a good.example ""`},
		"GET http://good.example:PORT//evil.example/a HTTP/1.1\r\nHost: good.example\r\n\r\n": {"200", `GET //evil.example/a good.example:PORT ""`},
		"GET http://evil.example/a HTTP/1.1\r\nHost: good.example\r\n\r\n":                    {"403", ""},
		"GET / HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n":                  {"400", ""},
		"GET / HTTP/1.1\r\n\r\n": {"400", ""},
		"GET / HTTP/1.0\r\n\r\n": {"403", ""},
		"GET / HTTP/1.1\r\nHost: good.example:1\r\nConnection: close\r\n\r\n":                                              {"403", ""},
		"GET / HTTP/1.1\r\nHost: GOOD.example.\r\nConnection: close\r\n\r\n":                                               {"200", `GET / GOOD.example. ""`},
		"GET / HTTP/1.1\r\nHost: evil.example:PORT:.good.example\r\nConnection: close\r\n\r\n":                             {"403", ""},
		"GET / HTTP/1.1\r\nHost: [good.example]:PORT\r\nConnection: close\r\n\r\n":                                         {"403", ""},
		"GET / HTTP/1.1\r\nHost: good.example,evil.example\r\nConnection: close\r\n\r\n":                                   {"403", ""},
		"GET / HTTP/1.1\r\nHost: user@good.example\r\nConnection: close\r\n\r\n":                                           {"400", ""},
		"GET\t/ HTTP/1.1\r\nHost: evil.example\r\n\r\n":                                                                    {"400", ""},
		"GET /\x00 HTTP/1.1\r\nHost: evil.example\r\n\r\n":                                                                 {"400", ""},
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n":                                   {"400", ""},
		"CONNECT good.example:PORT HTTP/1.1\r\nHost: good.example:PORT\r\n\r\n":                                            {"403", ""},
		"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n":                                              {"403", ""},
		"POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding : chunked\r\nConnection: close\r\n\r\n0\r\n\r\n":       {"400", ""},
		"POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 3\r\nContent-Length: 4\r\nConnection: close\r\n\r\nabcd": {"400", ""},
		"GET /\r\n\r\n": {"400", ""},
		"\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n":                      {"403", ""},
		"get / HTTP/1.1\r\nHost: evil.example\r\n\r\n":                          {"403", ""},
		"OPTIONS * HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n": {"200", `OPTIONS * good.example ""`},
	} {
		answer := r.sendText(t, text)
		first, _, _ := strings.Cut(answer, "\r\n")
		if !strings.Contains(first, " "+want.status+" ") {
			t.Errorf("%q: got %q, want %s", text, first, want.status)
		}
		if refused := r.refused.Swap(0); (refused == 1) != (want.status == "403") {
			t.Errorf("%q: reported %d refusals", text, refused)
		}
		got := ""
		select {
		case got = <-seen:
		default:
		}
		if want := strings.ReplaceAll(want.seen, "PORT", fmt.Sprint(r.dst.Port())); got != want {
			t.Errorf("%q: the server got %q, want %q", text, got, want)
		}
	}
}

// A client can end its side after the request, and wait for the response.
func TestHalfClose(t *testing.T) {
	ended := make(chan struct{})
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-ended: // the gateway has had time to see the end
			io.WriteString(w, "done")
		case <-r.Context().Done():
		}
	}))
	c, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(ended) })
	if answer, err := io.ReadAll(c); !strings.HasSuffix(string(answer), "\r\n\r\ndone") || err != nil {
		t.Errorf("got %q, %v", answer, err)
	}
}

// After an upgrade nothing is checked, so only WebSockets get one.
func TestUpgrade(t *testing.T) {
	upgrades := make(chan string, 1)
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		upgrades <- r.Header.Get("Upgrade") + r.Header.Get("Http2-Settings")
		w.Header().Set("Connection", "close")
	}))
	for _, protocol := range []string{"h2c", "websocket, h2c", "tcp"} {
		answer := r.sendText(t, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "+protocol+"\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n")
		if got := <-upgrades; got != "" || !strings.Contains(answer, " 200 ") {
			t.Errorf("%s: the server saw %q and the client %q", protocol, got, answer)
		}
	}
}

func TestWebSocket(t *testing.T) {
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(2 << 20)
		if err := c.Write(r.Context(), websocket.MessageText, []byte("welcome")); err != nil {
			t.Error(err)
		}
		kind, message, err := c.Read(r.Context())
		if err != nil {
			t.Error(err)
		}
		_ = c.Write(r.Context(), kind, message)
		_ = c.Close(websocket.StatusNormalClosure, "")
	}))
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	c, _, err := websocket.Dial(ctx, r.urlFor("good.example", "/"), &websocket.DialOptions{HTTPClient: r.newClient(t, false)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(2 << 20)
	if _, message, err := c.Read(ctx); string(message) != "welcome" || err != nil {
		t.Errorf("got %q, %v", message, err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	if err := c.Write(ctx, websocket.MessageBinary, large); err != nil {
		t.Fatal(err)
	}
	if _, message, err := c.Read(ctx); !bytes.Equal(message, large) || err != nil {
		t.Errorf("got %d bytes, %v", len(message), err)
	}
}

// Bodies arrive whole in both directions, with a length and without.
func TestBodies(t *testing.T) {
	byVersion(t, func(t *testing.T, http2 bool) {
		r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.Header().Set("Trailer", "Sum")
			sum := sha256.New()
			_, _ = io.Copy(w, io.TeeReader(r.Body, sum))
			w.Header().Set("Sum", fmt.Sprintf("%x", sum.Sum(nil)))
		}))
		client := r.newClient(t, http2)
		for _, size := range []int{0, 1, 200 << 10, 10 << 20} {
			body := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{}).Read(body)
			for _, chunked := range []bool{false, true} {
				var source io.Reader = bytes.NewReader(body)
				if chunked {
					source = io.MultiReader(source)
				}
				resp, err := client.Post(r.urlFor("good.example", "/"), "", source)
				if text := mustRead(t, resp, err); text != string(body) {
					t.Errorf("%d bytes, chunked: %t: got %d back, which differ", size, chunked, len(text))
				}
				if want := fmt.Sprintf("%x", sha256.Sum256(body)); resp.Trailer.Get("Sum") != want {
					t.Errorf("%d bytes, chunked: %t: the trailer is %q, want %q", size, chunked, resp.Trailer, want)
				}
			}
		}
	})
}

// Each event of a stream arrives before the next is sent.
func TestStream(t *testing.T) {
	byVersion(t, func(t *testing.T, http2 bool) {
		next := make(chan struct{})
		r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 5 {
				fmt.Fprintf(w, "data: %d\n", i)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-next:
				case <-r.Context().Done():
					return
				}
			}
		}))
		resp, err := r.newClient(t, http2).Get(r.urlFor("good.example", "/"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for i := range 5 {
			if want := fmt.Sprintf("data: %d", i); !lines.Scan() || lines.Text() != want {
				t.Fatalf("got %q, %v, want %q", lines.Text(), lines.Err(), want)
			}
			next <- struct{}{}
		}
	})
}

// A server can respond with trailers, and before the end of the request.
func TestEarlyResponse(t *testing.T) {
	byVersion(t, func(t *testing.T, http2 bool) {
		r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.Header().Set("Trailer", "Grpc-Status")
			w.WriteHeader(http.StatusOK)
			w.Header().Set("Grpc-Status", "7")
		}))
		body, more := io.Pipe()
		defer more.Close()
		resp, err := r.newClient(t, http2).Post(r.urlFor("good.example", "/"), "application/grpc", body)
		mustRead(t, resp, err)
		if got := resp.Trailer.Get("Grpc-Status"); got != "7" {
			t.Errorf("the trailer is %q, want 7", got)
		}
	})
}

// A server can refuse a body before it is sent.
func TestExpect(t *testing.T) {
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "got %s", body)
	}))
	for path, want := range map[string]int{"/large": http.StatusRequestEntityTooLarge, "/small": http.StatusOK} {
		var sent atomic.Bool
		req, err := http.NewRequest("POST", r.urlFor("good.example", path), readerFunc(func([]byte) (int, error) {
			sent.Store(true)
			return 0, io.EOF
		}))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Expect", "100-continue")
		resp, err := r.newClient(t, false).Do(req)
		mustRead(t, resp, err)
		if resp.StatusCode != want || sent.Load() != (want == http.StatusOK) {
			t.Errorf("%s: got %s, the body was sent: %t", path, resp.Status, sent.Load())
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Early hints pass.
func TestInformation(t *testing.T) {
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header()["Date"] = nil
		io.WriteString(w, "done")
	}))
	hint := ""
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
		hint = fmt.Sprint(code, header.Get("Link"))
		return nil
	}})
	req, err := http.NewRequestWithContext(ctx, "GET", r.urlFor("good.example", "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.newClient(t, false).Do(req)
	if text := mustRead(t, resp, err); text != "done" || hint != "103</style.css>" || resp.Header.Get("Link") != "" || resp.Header.Get("Date") != "" {
		t.Errorf("got %q with the hint %q and %v", text, hint, resp.Header)
	}
}

// A connection of the client has one connection to the server, and ends when the server ends that one in the middle of a response.
func TestConnections(t *testing.T) {
	var clients atomic.Int32
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/break" {
			w.Header().Set("Content-Length", "10")
			io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/last" {
			w.Header().Set("Connection", "close")
		}
	}))
	client := r.newClient(t, false)
	get := func(path string) error {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
			if !c.Reused {
				clients.Add(1)
			}
		}})
		req, err := http.NewRequestWithContext(ctx, "GET", r.urlFor("good.example", path), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	for range 3 {
		if err := get("/"); err != nil {
			t.Error(err)
		}
	}
	if clients, servers := clients.Load(), r.dials.Load(); clients != 1 || servers != 1 {
		t.Errorf("%d connections of the client and %d to the server, want one each", clients, servers)
	}
	if err := get("/last"); err != nil {
		t.Error(err)
	}
	if err := get("/break"); err == nil {
		t.Error("a response that the server broke off is whole")
	}
	if err := get("/"); err != nil {
		t.Error(err)
	}
}

// A client that has no answer because the server has gone sees the end of its connection, as without a gateway.
func TestServerGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = bufio.NewReader(c).ReadString('\n')
		c.Close()
	}()
	defer func() {
		l.Close()
		<-done
	}()
	r := newRig(t, netip.MustParseAddrPort(l.Addr().String()))
	resp, err := r.newClient(t, false).Post(r.urlFor("good.example", "/"), "", strings.NewReader("x"))
	if err == nil {
		resp.Body.Close()
		t.Fatalf("got %s, want an error", resp.Status)
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("got %v, want it at once", err)
	}
}

// The end of a stream of HTTP/2 is not that of the others.
func TestStreamsEndAlone(t *testing.T) {
	begun, next := make(chan struct{}, 2), make(chan struct{})
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		select {
		case <-next:
			io.WriteString(w, "done")
		case <-r.Context().Done():
		}
	}))
	client := r.newClient(t, true)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", r.urlFor("good.example", "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	second, err := client.Get(r.urlFor("good.example", "/"))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	<-begun
	cancel()
	if _, err := io.ReadAll(first.Body); err == nil {
		t.Error("the cancelled stream has ended well")
	}
	close(next)
	if text := mustRead(t, second, nil); text != "done" {
		t.Errorf("the other stream: got %q", text)
	}
}

// A client of HTTP/2 gets more connections to a server that serves few requests on each, but not any number.
func TestFewStreams(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	s.Start()
	defer s.Close()
	r := newRig(t, netip.MustParseAddrPort(s.Listener.Addr().String()))
	client := r.newClient(t, true)
	first, err := client.Get(r.urlFor("good.example", "/")) // so that the client has a connection for the others
	mustRead(t, first, err)
	get := func(count int) (served int32) {
		var ok atomic.Int32
		var wg sync.WaitGroup
		for range count {
			wg.Go(func() {
				if resp, err := client.Get(r.urlFor("good.example", "/")); err == nil {
					resp.Body.Close()
					ok.Add(1)
				}
			})
		}
		wg.Wait()
		return ok.Load()
	}
	if served := get(maxServers / 2); served != maxServers/2 {
		t.Errorf("%d of %d requests at once were served", served, maxServers/2)
	}
	get(maxStreams - 10) // on one connection of the client
	if most := r.most.Load(); most > maxServers {
		t.Errorf("%d connections to the server at once, want at most %d", most, maxServers)
	}
}

// The end of the context ends all connections, also one that was made later to a server that does not answer.
func TestEnd(t *testing.T) {
	asked := make(chan struct{}, 1)
	r := newRig(t, serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	c, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(c, "GET /wait HTTP/1.1\r\nHost: good.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r.end()
	select {
	case <-r.served:
		r.served <- struct{}{}
	case <-time.After(deadline):
		t.Error("the connection goes on")
	}
}
