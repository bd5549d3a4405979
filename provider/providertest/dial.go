package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

var dials = []promise{
	{"Dial connects to a port inside, both ways", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		c := h.dial(t, sb, h.serve(t, sb))
		for _, text := range []string{"hello", "again"} {
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatalf("Write: %v", err)
			}
			got := make([]byte, len(text))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
				t.Errorf("the server sent %q, %v; want %q", got, err, text)
			}
		}
	}},
	{"a connection can be closed for writing and read to its end", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		c := h.dial(t, sb, h.serve(t, sb))
		half, ok := c.(interface{ CloseWrite() error })
		if !ok {
			t.Fatalf("a %T has no CloseWrite", c)
		}
		data := pattern(1 << 20)
		sent := make(chan error, 1)
		go func() {
			_, err := c.Write(data)
			sent <- errors.Join(err, half.CloseWrite())
		}()
		got, err := io.ReadAll(c)
		if err := errors.Join(err, <-sent); err != nil {
			t.Errorf("sending and receiving: %v", err)
		}
		if d := differ(got, data); d != "" {
			t.Errorf("the server sent %s", d)
		}
	}},
	{"a port where nobody listens is ErrUnavailable of this sandbox", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		_, err := atoll.Dial(h.ctx(t), sb, 4999)
		wantKind(t, "Dial", err, atoll.ErrUnavailable)
		var e *atoll.Error
		if !errors.As(err, &e) || e.ID != sb.ID() {
			t.Errorf("the error is %v, want one that names %s", err, sb.ID())
		}
	}},
	{"a port that is none is ErrInvalid", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		for _, port := range []int{-1, 0, 65536} {
			_, err := atoll.Dial(h.ctx(t), sb, port)
			wantKind(t, fmt.Sprintf("Dial %d", port), err, atoll.ErrInvalid)
		}
	}},
	{"the port of the host with the same number is not meant", []need{needDial, needWalls}, func(t *testing.T, h *harness) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := atoll.Dial(h.ctx(t), h.idle(t), l.Addr().(*net.TCPAddr).Port)
		if err == nil {
			c.Close()
			t.Fatal("Dial reached a port of the host")
		}
		wantKind(t, "Dial", err, atoll.ErrUnavailable)
	}},
	{"HTTPClient asks the server inside, whatever the URL's host and wherever it redirects to", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		port := freePort(t)
		h.start(t, sb, word("web", port))
		client := atoll.HTTPClient(sb, port)
		for url, want := range map[string]string{
			"http://localhost/health":      "localhost /health",
			"http://192.0.2.7:81/health":   "192.0.2.7:81 /health",
			"http://agent.example.com/out": "example.com /in",
		} {
			var got string
			h.poll(t, h.short(), func() (err error) { // until the server has started
				got, err = fetch(h.ctx(t), client, url)
				return err
			})
			if got != want {
				t.Errorf("GET %s: %q, want %q", url, got, want)
			}
		}
	}},
	{"HTTPClient says what Dial fails with", []need{needDial}, func(t *testing.T, h *harness) {
		_, err := fetch(h.ctx(t), atoll.HTTPClient(h.idle(t), 4999), "http://localhost/")
		wantKind(t, "GET", err, atoll.ErrUnavailable)
	}},
	{"connections end when the sandbox is removed", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		c := h.dial(t, sb, h.serve(t, sb))
		if err := sb.Remove(h.ctx(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		within(t, h.short(), "Read after Remove", func() {
			if n, err := io.Copy(io.Discard, c); n != 0 {
				t.Errorf("read %d bytes, %v", n, err)
			}
		})
	}},
	{"many connections one after the other leave nothing behind", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.idle(t)
		port := h.serve(t, sb)
		for i := range 20 {
			c := h.dial(t, sb, port)
			msg := []byte{byte(i)}
			c.Write(msg)
			got := make([]byte, 1)
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, msg) {
				t.Errorf("connection %d: %v, %v", i, got, err)
			}
			c.Close()
		}
	}},
}

// fetch returns what is at the URL.
func fetch(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

// serve starts an echo server inside and returns its port.
func (h *harness) serve(t *testing.T, sb atoll.Sandbox) int {
	t.Helper()
	port := freePort(t)
	h.start(t, sb, word("serve", port))
	return port
}

// freePort is one that is free on this machine, for sandboxes that share its
// network.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// dial connects to a server that may still be starting.
func (h *harness) dial(t *testing.T, sb atoll.Sandbox, port int) net.Conn {
	t.Helper()
	var c net.Conn
	h.poll(t, h.short(), func() (err error) {
		c, err = atoll.Dial(h.ctx(t), sb, port)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

var errRefused = errors.New("it cannot be reached")

// connect connects from inside.
func (h *harness) connect(t *testing.T, sb atoll.Sandbox, host string, port int) error {
	t.Helper()
	switch code := h.code(t, sb, word("connect", host, port)); code {
	case 0:
		return nil
	case 99:
		t.Skip("the image has neither perl nor python3 nor nc to connect with")
	}
	return errRefused
}
