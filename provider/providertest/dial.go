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
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

var dialPromises = []promise{
	{"Dial connects to a port inside, both ways", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		c := h.dialPort(t, sb, h.startEchoServer(t, sb))
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
		sb := h.plainSandbox(t)
		c := h.dialPort(t, sb, h.startEchoServer(t, sb))
		half, ok := c.(interface{ CloseWrite() error })
		if !ok {
			t.Fatalf("a %T has no CloseWrite", c)
		}
		data := patternBytes(1 << 20)
		sent := make(chan error, 1)
		go func() {
			_, err := c.Write(data)
			sent <- errors.Join(err, half.CloseWrite())
		}()
		got, err := io.ReadAll(c)
		if err := errors.Join(err, <-sent); err != nil {
			t.Errorf("sending and receiving: %v", err)
		}
		if d := describeDiff(got, data); d != "" {
			t.Errorf("the server sent %s", d)
		}
	}},
	{"a port without a listener is ErrUnavailable with the sandbox's id", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		_, err := atoll.Dial(h.newContext(t), sb, 4999)
		wantKind(t, "Dial", err, atoll.ErrUnavailable)
		var e *atoll.Error
		if !errors.As(err, &e) || e.ID != sb.ID() {
			t.Errorf("the error is %v, want one that names %s", err, sb.ID())
		}
	}},
	{"an invalid port is ErrInvalid", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, port := range []int{-1, 0, 65536} {
			_, err := atoll.Dial(h.newContext(t), sb, port)
			wantKind(t, fmt.Sprintf("Dial %d", port), err, atoll.ErrInvalid)
		}
	}},
	{"Dial does not reach the host's port of the same number", []need{needDial, needIsolation}, func(t *testing.T, h *harness) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := atoll.Dial(h.newContext(t), h.plainSandbox(t), l.Addr().(*net.TCPAddr).Port)
		if err == nil {
			c.Close()
			t.Fatal("Dial reached a port of the host")
		}
		wantKind(t, "Dial", err, atoll.ErrUnavailable)
	}},
	{"HTTPClient connects to the server inside, whatever host a URL or a redirect names", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		port := findFreePort(t)
		h.startProcess(t, sb, scriptCommand("web", port))
		client := atoll.HTTPClient(sb, port)
		for url, want := range map[string]string{
			"http://localhost/health":      "localhost /health",
			"http://192.0.2.7:81/health":   "192.0.2.7:81 /health",
			"http://agent.example.com/out": "example.com /in",
		} {
			var got string
			h.waitUntil(t, h.shortLimit(), func() (err error) { // until the server has started
				got, err = fetchURL(h.newContext(t), client, url)
				return err
			})
			if got != want {
				t.Errorf("GET %s: %q, want %q", url, got, want)
			}
		}
	}},
	{"HTTPClient returns the error of Dial", []need{needDial}, func(t *testing.T, h *harness) {
		_, err := fetchURL(h.newContext(t), atoll.HTTPClient(h.plainSandbox(t), 4999), "http://localhost/")
		wantKind(t, "GET", err, atoll.ErrUnavailable)
	}},
	{"connections end when the sandbox is removed", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		c := h.dialPort(t, sb, h.startEchoServer(t, sb))
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		runWithin(t, h.shortLimit(), "Read after Remove", func() {
			if n, err := io.Copy(io.Discard, c); n != 0 {
				t.Errorf("read %d bytes, %v", n, err)
			}
		})
	}},
	{"many successive connections leave nothing behind", []need{needDial}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		port := h.startEchoServer(t, sb)
		for i := range 20 {
			c := h.dialPort(t, sb, port)
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

// fetchURL returns the body at the URL.
func fetchURL(ctx context.Context, client *http.Client, url string) (string, error) {
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

// startEchoServer starts an echo server inside and returns its port.
func (h *harness) startEchoServer(t *testing.T, sb atoll.Sandbox) int {
	t.Helper()
	port := findFreePort(t)
	h.startProcess(t, sb, scriptCommand("serve", port))
	return port
}

// findFreePort returns a port that is free on this machine, for sandboxes that share its network.
func findFreePort(t *testing.T) int {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// dialPort connects to a server inside, which may still be starting. The end of the test closes the
// connection.
func (h *harness) dialPort(t *testing.T, sb atoll.Sandbox, port int) net.Conn {
	t.Helper()
	var c net.Conn
	h.waitUntil(t, h.shortLimit(), func() (err error) {
		c, err = atoll.Dial(h.newContext(t), sb, port)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

var errRefused = errors.New("the address cannot be reached")

// connectFromInside connects from inside to host and port. It skips the test if the image has no
// program for that.
func (h *harness) connectFromInside(t *testing.T, sb atoll.Sandbox, host string, port int) error {
	t.Helper()
	switch code := h.runForCode(t, sb, scriptCommand("connect", host, port)); code {
	case 0:
		return nil
	case 99:
		t.Skip("the image has neither perl nor python3 nor nc to connect with")
	}
	return errRefused
}
