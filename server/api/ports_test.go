package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// servePorts makes h the server on all ports of the rig's sandbox.
func (r *rig) servePorts(t *testing.T, h http.Handler) {
	t.Helper()
	server := newServer(t, h)
	u, _ := url.Parse(server.URL)
	r.box.dial = func(ctx context.Context, port int) (net.Conn, error) {
		if port == 4999 {
			return nil, atoll.Errorf("dial", fakeID, atoll.ErrUnavailable, "nobody listens on port %d", port)
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", u.Host)
	}
}

func TestProxy(t *testing.T) {
	r := newRig(t, Options{Tokens: map[string]auth.Account{"secret": {}}})
	r.servePorts(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/there", http.StatusFound)
			return
		case "/hang-up":
			panic(http.ErrAbortHandler)
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s auth=%q prefix=%s host=%v for=%v body=%s", r.Method, r.RequestURI, r.Header.Get("Authorization"),
			r.Header.Get("X-Forwarded-Prefix"), r.Host != "", r.Header.Get("X-Forwarded-For") != "", body)
	}))
	const base = "/v1/sandboxes/" + fakeID + "/ports/"
	auth := []string{"Authorization", "Bearer secret"}
	for _, c := range []struct{ method, path, want string }{
		{"GET", "8080/", "GET / auth=\"\" prefix=" + base + "8080 host=true for=true body="},
		{"POST", "8080/a/b%2Fc?x=1&y=%20", "POST /a/b%2Fc?x=1&y=%20 "},
		{"DELETE", "1/x", "DELETE /x "},
		{"PUT", "8080/%2e%2e", "PUT /%2e%2e "},
		{"GET", "8080", "GET / "},
		{"POST", "8080/a//b/http://x", "POST /a//b/http://x "},
		{"POST", "8080//x", "POST //x "},
		{"POST", "8080/a/../../../../b/./c/", "POST /a/../../../../b/./c/ "},
		{"GET", "8080/x?a;b=%zz&c", "GET /x?a;b=%zz&c "},
		{"GET", "8080/x?", "GET /x? "},
	} {
		resp, body := r.doRequest(t, c.method, base+c.path, "data", auth...)
		if resp.StatusCode != 200 || !strings.HasPrefix(body, c.want) || !strings.HasSuffix(body, "body=data") {
			t.Errorf("%s %s: %d %s, want %s", c.method, c.path, resp.StatusCode, body, c.want)
		}
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	req, _ := http.NewRequest("GET", r.server.URL+base+"80/redirect", nil)
	req.Header.Set("Authorization", "Bearer secret")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("Location"); got != base+"80/there" {
		t.Errorf("redirected to %s", got)
	}
	for path, want := range map[string]int{"4999/": 503, "80/hang-up": 502, "70000/": 400} {
		resp, body := r.doRequest(t, "GET", base+path, "", auth...)
		if resp.StatusCode != want || !strings.Contains(body, `"kind"`) {
			t.Errorf("%s: %d %s, want %d", path, resp.StatusCode, body, want)
		}
	}
}

func TestProxyWebSockets(t *testing.T) {
	r := newRig(t, Options{})
	r.servePorts(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"echo"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		for {
			typ, b, err := ws.Read(r.Context())
			if err != nil || ws.Write(r.Context(), typ, b) != nil {
				return
			}
		}
	}))
	ws, _, err := websocket.Dial(t.Context(), r.server.URL+"/v1/sandboxes/"+fakeID+"/ports/80//deep/../ws", &websocket.DialOptions{Subprotocols: []string{"echo"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if ws.Subprotocol() != "echo" {
		t.Errorf("subprotocol %q", ws.Subprotocol())
	}
	for _, text := range []string{"one", strings.Repeat("x", 30_000)} {
		if err := ws.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := ws.Read(t.Context()); err != nil || string(b) != text {
			t.Errorf("%d bytes came back, %v", len(b), err)
		}
	}
	finishesSoon(t, "closing a handler with a WebSocket through it", func() { r.handler.Close() })
}

func TestDial(t *testing.T) {
	r := newRig(t, Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { // greets at once, and echoes its input at the end of the input
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		io.WriteString(c, "hello\n")
		b, err := io.ReadAll(c)
		fmt.Fprintf(c, "%d bytes", len(b))
		served <- err
	}()
	r.box.dial = func(ctx context.Context, _ int) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	c, err := atoll.Dial(ctx, r.sb, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cancel() // bounds only the dial
	br := bufio.NewReader(c)
	if line, err := br.ReadString('\n'); line != "hello\n" {
		t.Errorf("read %q, %v", line, err)
	}
	if _, err := c.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(br); err != nil || string(rest) != "1048576 bytes" {
		t.Errorf("read %q, %v", rest, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestDialErrors(t *testing.T) {
	r := newRig(t, Options{})
	if _, err := atoll.Dial(t.Context(), r.sb, 80); !errors.Is(err, atoll.ErrUnsupported) {
		t.Errorf("Dial: %v", err)
	}
	r.servePorts(t, http.NotFoundHandler())
	if _, err := atoll.Dial(t.Context(), r.sb, 4999); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("Dial: %v", err)
	}
	c, err := atoll.Dial(t.Context(), r.sb, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	finishesSoon(t, "the end of a tunnel whose handler closes", func() {
		r.handler.Close()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("read %d bytes, %v", n, err)
		}
	})
	_ = c.SetDeadline(time.Now())
}

func TestHTTPClient(t *testing.T) {
	r := newRig(t, Options{})
	r.servePorts(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "from "+r.Host) }))
	client := atoll.HTTPClient(r.sb, 80)
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://inside/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); string(b) != "from inside" {
		t.Errorf("got %q, %v", b, err)
	}
}

// A request with a body to a port on which nothing listens costs its connection, and not more.
func TestProxyRefusedBody(t *testing.T) {
	r := newRig(t, Options{})
	for range 3 {
		resp, err := r.server.Client().Post(r.server.URL+"/v1/sandboxes/"+fakeID+"/ports/81/", "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode < 400 || !resp.Close {
			t.Errorf("%s, closing: %t; %s", resp.Status, resp.Close, text)
		}
	}
}

// A server on a port may respond before the end of the request.
func TestProxyEarlyResponse(t *testing.T) {
	r := newRig(t, Options{})
	r.servePorts(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintf(w, "got %s\n", lines.Text())
			_ = c.Flush()
		}
	}))
	body, ask := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.server.URL+"/v1/sandboxes/"+fakeID+"/ports/80/", body)
	if err != nil {
		t.Fatal(err)
	}
	go fmt.Fprintln(ask, "0")
	resp, err := r.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := bufio.NewScanner(resp.Body)
	for i := range 5 {
		if want := fmt.Sprintf("got %d", i); !answer.Scan() || answer.Text() != want {
			t.Fatalf("the answer is %q, %v; want %q", answer.Text(), answer.Err(), want)
		}
		if i < 4 {
			fmt.Fprintln(ask, i+1)
		}
	}
	ask.Close()
	if answer.Scan() || answer.Err() != nil {
		t.Errorf("the answer ends with %q, %v", answer.Text(), answer.Err())
	}
}
