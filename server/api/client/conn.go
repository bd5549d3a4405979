package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// newDialer returns a function that connects to the host of an http or https URL.
func newDialer(u *url.URL) func(ctx context.Context) (net.Conn, error) {
	d := &net.Dialer{Timeout: dialTimeout}
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

// A requestConn is a connection for one request. It has no goroutines and no pool,
// unlike the connections of http.Transport.
type requestConn struct {
	net.Conn
	br   *bufio.Reader
	head io.LimitedReader // reads Conn for br, up to the limit of the response header
}

func newRequestConn(conn net.Conn) *requestConn {
	w := &requestConn{Conn: conn, head: io.LimitedReader{R: conn, N: maxHead}}
	w.br = bufio.NewReaderSize(&w.head, headBuffer)
	return w
}

// Read reads the data buffered after the response header first.
func (w *requestConn) Read(p []byte) (int, error) {
	if w.br.Buffered() > 0 {
		return w.br.Read(p)
	}
	return w.Conn.Read(p)
}

// CloseWrite closes the write half of the connection.
func (w *requestConn) CloseWrite() error {
	if cw, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return fmt.Errorf("the connection does not support half-close: %w", http.ErrNotSupported)
}

// headBuffer is the buffer size for the header of a request or response. Data after the header
// bypasses the buffer.
const headBuffer = 1 << 10

// roundTrip sends req over a new connection and returns the response. The caller must close the
// connection and read the body from it. ctx bounds only the exchange of the headers.
func (c *Client) roundTrip(req *http.Request) (*requestConn, *http.Response, error) {
	ctx := req.Context()
	conn, err := c.dialEndpoint(ctx, c.endpointByURL(req.URL))
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	w := newRequestConn(conn)
	var resp *http.Response
	if err = w.writeRequest(req); err == nil {
		resp, err = w.readResponse(req)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return w, resp, nil
}

// writeRequest sends req.
func (w *requestConn) writeRequest(req *http.Request) error {
	bw := bufio.NewWriterSize(w.Conn, headBuffer)
	if err := req.Write(bw); err != nil {
		return err
	}
	return bw.Flush()
}

// readResponse reads the header of the response to req. The body of the response reads from br.
func (w *requestConn) readResponse(req *http.Request) (*http.Response, error) {
	resp, err := http.ReadResponse(w.br, req)
	if err != nil && w.head.N <= 0 {
		err = fmt.Errorf("the response headers are larger than %s", atoll.Bytes(maxHead))
	}
	w.head.N = math.MaxInt64
	return resp, err
}

// upgradeConn upgrades a new connection to another protocol. ctx bounds only the upgrade.
func (c *Client) upgradeConn(ctx context.Context, q call, protocol string) (*requestConn, error) {
	req, err := c.newRequest(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	w, resp, err := c.roundTrip(req)
	if err != nil {
		return nil, c.wrapConnError(ctx, q.op, q.id, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer w.Close()
		return nil, c.backOffIfClosing(resp, upgradeError(resp, q))
	}
	return w, nil
}

// upgradeError returns the error of a response that refuses an upgrade.
func upgradeError(resp *http.Response, q call) error {
	if resp.StatusCode < 400 {
		return atoll.Errorf(q.op, q.id, atoll.ErrInternal, "the server answered %s and does not support the protocol", resp.Status)
	}
	return readError(resp, q.op, q.id)
}

// webSocket opens a WebSocket. ctx bounds only the opening. It offers the server of this machine the message first with the request,
// unless that is nil. taken reports whether the server has it.
func (c *Client) webSocket(ctx context.Context, q call, first *wire.Message) (_ *websocket.Conn, taken bool, err error) {
	req, err := c.newRequest(ctx, q, nil)
	if err != nil {
		return nil, false, err
	}
	if first != nil && c.endpointByURL(req.URL).local { // no proxy has seen the header
		wire.SetFirst(req.Header, *first)
	}
	var refused error // the server's error instead of an upgrade
	transport := func(req *http.Request) (*http.Response, error) {
		w, resp, err := c.roundTrip(req)
		if err != nil {
			return nil, c.wrapConnError(ctx, q.op, q.id, err)
		}
		if resp.StatusCode != http.StatusSwitchingProtocols {
			defer w.Close()
			refused = c.backOffIfClosing(resp, upgradeError(resp, q))
			return nil, refused
		}
		resp.Body = w
		return resp, nil
	}
	ws, resp, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transportFunc(transport)},
		HTTPHeader: req.Header,
	})
	if refused != nil {
		return nil, false, refused
	}
	if err != nil {
		return nil, false, c.wrapConnError(ctx, q.op, q.id, err)
	}
	return ws, resp.Header.Get(wire.FirstHeader) != "", nil
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
