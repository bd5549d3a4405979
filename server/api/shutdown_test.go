package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// A server that ends answers each request on the connections of its clients: it executes the request
// or says that it did not.
func TestShutdownAnswersConnectedClients(t *testing.T) {
	const token = "t"
	for range 10 {
		h, err := NewHandler(newFake(), Options{Tokens: map[string]auth.Account{token: {}}})
		if err != nil {
			t.Fatal(err)
		}
		l := listenLoopback(t)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, h, l) }()
		var clients, connected sync.WaitGroup
		for range 8 {
			connected.Add(1)
			clients.Go(func() {
				c := &http.Client{Transport: &http.Transport{}} // with a connection of its own
				defer c.CloseIdleConnections()
				url := "http://" + l.Addr().String() + "/v1/sandboxes"
				status := postOnce(t, c, url, token)
				connected.Done()
				for status == http.StatusCreated {
					status = postOnce(t, c, url, token)
				}
			})
		}
		connected.Wait()
		cancel()
		clients.Wait()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
}

// postOnce returns the status of a POST, or 0 if no server listens.
func postOnce(t *testing.T, c *http.Client, url, token string) int {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return 0
	}
	if err != nil {
		t.Errorf("the request is lost: %v", err)
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("the response is cut off: %v", err)
	}
	return resp.StatusCode
}

// A door accepts the connections that clients have made before it shuts.
func TestDoorAcceptsPendingConnections(t *testing.T) {
	for _, addr := range []string{"tcp://127.0.0.1:0", "unix://" + filepath.Join(t.TempDir(), "socket")} {
		l, err := Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		d := &door{Listener: l}
		const pending = 20
		for range pending {
			conn, err := net.Dial(l.Addr().Network(), l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		d.closeDrained()
		later := time.Now().Add(testenv.Scale(time.Minute)) // this is no test of the limit
		d.drainEnd.Store(&later)
		for i := range pending {
			conn, err := d.Accept()
			if err != nil {
				t.Fatalf("%s: Accept %d: %v", addr, i, err)
			}
			conn.Close()
		}
		if _, err := d.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: Accept without pending connections: %v, want %v", addr, err, net.ErrClosed)
		}
	}
}

// A door that shuts ends an Accept that blocks.
func TestDoorShutsWhileAccepting(t *testing.T) {
	for name, l := range map[string]net.Listener{"tcp": listenLoopback(t), "pipe": NewPipe()} {
		d := &door{Listener: l}
		accepted := make(chan error, 1)
		go func() {
			_, err := d.Accept()
			accepted <- err
		}()
		time.Sleep(10 * time.Millisecond) // usually it blocks by then
		d.closeDrained()
		select {
		case err := <-accepted:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: Accept: %v, want %v", name, err, net.ErrClosed)
			}
		case <-time.After(testenv.Scale(10 * time.Second)):
			t.Fatalf("%s: Accept still blocks", name)
		}
	}
}

func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := Listen(t.Context(), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Clients that connect without a pause do not keep a door open.
func TestDoorClosesInTime(t *testing.T) {
	d := &door{Listener: listenLoopback(t)}
	conn, err := net.Dial("tcp", d.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	past := time.Now().Add(-time.Second)
	d.drainEnd.Store(&past)
	if _, err := d.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after the time to drain: %v, want %v", err, net.ErrClosed)
	}
	checkClosed(t, d.Listener)
}
