package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// dialer connects to the host of an http or https URL.
func dialer(u *url.URL) func(ctx context.Context) (net.Conn, error) {
	d := &net.Dialer{Timeout: connectionLimit}
	if u.Scheme == "https" {
		addr := hostPort(u, "443")
		t := &tls.Dialer{NetDialer: d, Config: &tls.Config{NextProtos: []string{"http/1.1"}}}
		return func(ctx context.Context) (net.Conn, error) { return t.DialContext(ctx, "tcp", addr) }
	}
	addr := hostPort(u, "80")
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
}

func hostPort(u *url.URL, port string) string {
	if p := u.Port(); p != "" {
		port = p
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// A wire is a connection of the client's that carries one request. It is a
// connection of its own, without the goroutines and the pool of
// http.Transport: what it is used for needs one anyhow.
type wire struct {
	net.Conn
	br *bufio.Reader
}

// Read reads what was received behind the answer first.
func (w *wire) Read(p []byte) (int, error) {
	if w.br.Buffered() > 0 {
		return w.br.Read(p)
	}
	return w.Conn.Read(p)
}

// CloseWrite tells the other side that nothing more will come.
func (w *wire) CloseWrite() error {
	if cw, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return fmt.Errorf("the connection cannot be closed one way: %w", http.ErrNotSupported)
}

// headBuffer is for the head of a request and its answer; what follows is read
// and written directly.
const headBuffer = 1 << 10

// roundTrip sends req over a new connection and returns its answer, whose body
// is read from there. Until then ctx bounds it.
func (c *Client) roundTrip(req *http.Request) (*wire, *http.Response, error) {
	ctx := req.Context()
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	w := &wire{Conn: conn, br: bufio.NewReaderSize(conn, headBuffer)}
	resp, err := w.exchange(req)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return w, resp, nil
}

func (w *wire) exchange(req *http.Request) (*http.Response, error) {
	bw := bufio.NewWriterSize(w.Conn, headBuffer)
	if err := req.Write(bw); err != nil {
		return nil, err
	}
	if err := bw.Flush(); err != nil {
		return nil, err
	}
	return http.ReadResponse(w.br, req)
}

// upgrade asks for another protocol on a new connection, which is returned
// once the server has agreed. ctx bounds the asking only.
func (c *Client) upgrade(ctx context.Context, q call, protocol string) (*wire, error) {
	req, err := c.request(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	w, resp, err := c.roundTrip(req)
	if err != nil {
		return nil, c.fault(ctx, q.op, q.id, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer w.Close()
		return nil, refused(resp, q)
	}
	return w, nil
}

// refused is why the server does not upgrade.
func refused(resp *http.Response, q call) error {
	if resp.StatusCode < 400 {
		return atoll.Errorf(q.op, q.id, atoll.ErrInternal, "the server answered %s and does not speak the protocol", resp.Status)
	}
	return readError(resp, q.op, q.id)
}

// webSocket opens a WebSocket. ctx bounds the opening only.
func (c *Client) webSocket(ctx context.Context, q call) (*websocket.Conn, error) {
	req, err := c.request(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	var answer error // of the server, instead of an upgrade
	transport := func(req *http.Request) (*http.Response, error) {
		w, resp, err := c.roundTrip(req)
		if err != nil {
			return nil, c.fault(ctx, q.op, q.id, err)
		}
		if resp.StatusCode != http.StatusSwitchingProtocols {
			defer w.Close()
			answer = refused(resp, q)
			return nil, answer
		}
		resp.Body = w
		return resp, nil
	}
	ws, _, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transportFunc(transport)},
		HTTPHeader: req.Header,
	})
	if answer != nil {
		return nil, answer
	}
	return ws, c.fault(ctx, q.op, q.id, err)
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// cancelGrace is how long exchange waits for the server to undo what ctx has
// cancelled.
const cancelGrace = 5 * time.Second

// exchange is call for a request whose fate must be known: when ctx ends it
// closes only its own half of the connection, which the server takes as the
// cancellation, and waits for what comes of it. It returns nil when the
// request succeeded all the same.
func (c *Client) exchange(ctx context.Context, q call) error {
	body, err := json.Marshal(q.body)
	if err != nil {
		return atoll.E(q.op, q.id, atoll.ErrInvalid, err)
	}
	req, err := c.request(ctx, q, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", mediaJSON)
	req.Close = true
	conn, err := c.dial(ctx)
	if err != nil {
		return c.fault(ctx, q.op, q.id, err)
	}
	defer conn.Close()
	w := &wire{Conn: conn, br: bufio.NewReaderSize(conn, headBuffer)}
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetReadDeadline(time.Now().Add(cancelGrace))
		if w.CloseWrite() != nil {
			conn.Close()
		}
	})
	defer stop()
	defer context.AfterFunc(c.ctx, func() { conn.Close() })()
	resp, err := w.exchange(req.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return c.fault(ctx, q.op, q.id, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return ctxErr(ctx, readError(resp, q.op, q.id))
	}
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxJSONReply))
	if err == nil {
		err = json.Unmarshal(reply, q.reply)
	}
	return c.fault(ctx, q.op, q.id, err)
}
