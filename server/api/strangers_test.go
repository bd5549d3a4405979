package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// startGuarded serves a fake on a TCP address until the test ends; the one token is "token".
func startGuarded(t *testing.T) (addr string) {
	h, err := NewHandler(newFake(), Options{Tokens: map[string]auth.Account{"token": {}}})
	if err != nil {
		t.Fatal(err)
	}
	l := listenLoopback(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, h, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// A request without a token is refused at once, although its body never ends, and its connection closes.
func TestStrangerWithoutBody(t *testing.T) {
	addr := startGuarded(t)
	var all sync.WaitGroup
	defer all.Wait()
	for name, head := range map[string]string{
		"length":  "Content-Length: 100\r\n\r\nx",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
		"huge":    "Content-Length: 1000000000\r\n\r\nx",
		"wrong":   "Authorization: Bearer wrong\r\nContent-Length: 100\r\n\r\nx",
		"expect":  "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n",
	} {
		for request, want := range map[string]int{
			"POST /v1/sandboxes": 401, "POST /mcp": 401, "PUT /v1/sandboxes/x/ports/80/": 401, "POST /nope": 401, "GET /health": 400, "POST /v1//sandboxes": 307,
		} {
			all.Go(func() {
				resp, err := sendUnfinished(addr, request+" HTTP/1.1\r\nHost: x\r\n"+head)
				if err != nil || resp.StatusCode != want || !resp.Close {
					t.Errorf("%s %s: %v, %v; want %d and the end of the connection", name, request, resp, err, want)
				}
			})
		}
	}
}

// sendUnfinished sends a part of a request and returns the response, once the server has closed the connection.
func sendUnfinished(addr, part string) (*http.Response, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := io.WriteString(c, part); err != nil {
		return nil, err
	}
	_ = c.SetReadDeadline(time.Now().Add(testenv.Scale(30 * time.Second)))
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	if _, err := r.ReadByte(); err != io.EOF {
		return resp, fmt.Errorf("the connection is open: %v", err)
	}
	return resp, nil
}

// Connections without a valid token do not keep others out: the oldest ones close.
func TestStrangersAreLimited(t *testing.T) {
	s := newStrangers()
	s.limit = 3
	var far []net.Conn
	open := func() net.Conn {
		near, other := net.Pipe()
		t.Cleanup(func() { near.Close(); other.Close() })
		far = append(far, other)
		s.addConn(near)
		return near
	}
	admitted := open()
	r := httptest.NewRequestWithContext(s.withConn(t.Context(), admitted), "GET", "/", nil)
	admitClient(httptest.NewRecorder(), r)
	for range 5 {
		open()
	}
	for i, c := range far {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		closed, want := err == io.EOF, i == 1 || i == 2 // after the admitted one, the two oldest of five
		if closed != want {
			t.Errorf("connection %d: closed %t, want %t (%v)", i, closed, want, err)
		}
	}
	if s.conns.Len() != 3 || len(s.elems) != 3 {
		t.Errorf("%d and %d connections are recorded, want 3", s.conns.Len(), len(s.elems))
	}
}
