package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
)

// newDialer returns a function that connects to the host of an http or https URL.
func newDialer(u *url.URL) func(ctx context.Context) (net.Conn, error) {
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

// A clientConn is a connection of the client for one request. It has no goroutines and no pool,
// unlike the connections of http.Transport.
type clientConn struct {
	net.Conn
	br   *bufio.Reader
	head io.LimitedReader // reads Conn for br, up to the limit of the response header
}

func newClientConn(conn net.Conn) *clientConn {
	w := &clientConn{Conn: conn, head: io.LimitedReader{R: conn, N: maxHead}}
	w.br = bufio.NewReaderSize(&w.head, headBuffer)
	return w
}

// Read reads the data buffered after the response header first.
func (w *clientConn) Read(p []byte) (int, error) {
	if w.br.Buffered() > 0 {
		return w.br.Read(p)
	}
	return w.Conn.Read(p)
}

// CloseWrite closes the write half of the connection.
func (w *clientConn) CloseWrite() error {
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
func (c *Client) roundTrip(req *http.Request) (*clientConn, *http.Response, error) {
	ctx := req.Context()
	conn, err := c.dialEndpoint(ctx, c.endpointByURL(req.URL))
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	w := newClientConn(conn)
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
func (w *clientConn) writeRequest(req *http.Request) error {
	bw := bufio.NewWriterSize(w.Conn, headBuffer)
	if err := req.Write(bw); err != nil {
		return err
	}
	return bw.Flush()
}

// readResponse reads the header of the response to req. The body of the response reads from br.
func (w *clientConn) readResponse(req *http.Request) (*http.Response, error) {
	resp, err := http.ReadResponse(w.br, req)
	if err != nil && w.head.N <= 0 {
		err = fmt.Errorf("the response headers are larger than %s", atoll.Bytes(maxHead))
	}
	w.head.N = math.MaxInt64
	return resp, err
}

// upgradeConn upgrades a new connection to another protocol. ctx bounds only the upgrade.
func (c *Client) upgradeConn(ctx context.Context, q call, protocol string) (*clientConn, error) {
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

// webSocket opens a WebSocket. ctx bounds only the opening.
func (c *Client) webSocket(ctx context.Context, q call) (*websocket.Conn, error) {
	req, err := c.newRequest(ctx, q, nil)
	if err != nil {
		return nil, err
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
	ws, _, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transportFunc(transport)},
		HTTPHeader: req.Header,
	})
	if refused != nil {
		return nil, refused
	}
	return ws, c.wrapConnError(ctx, q.op, q.id, err)
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// uploadGrace is the time for the server to undo an upload that was broken off.
const uploadGrace = 5 * time.Second

// callUndoable makes a request that the server must either complete or undo. If ctx ends or body
// fails, callUndoable closes its half of the connection, which makes the server undo the request,
// and waits up to q.undoTimeout for the response. When it returns, the server has finished, or the
// error says that it may not have. callUndoable returns nil if the request succeeded in spite of
// ctx, and the error of body if that failed.
func (c *Client) callUndoable(ctx context.Context, q call, body io.Reader, media string) error {
	src := &bodySource{r: body}
	req, err := c.newRequest(ctx, q, src)
	if err != nil {
		return err
	}
	req.ContentLength = sizeOf(body)
	if req.ContentLength == 0 {
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", media)
	req.Close = true
	conn, err := c.dialEndpoint(ctx, c.endpointByURL(req.URL))
	if err != nil {
		return c.wrapConnError(ctx, q.op, q.id, err)
	}
	defer conn.Close()
	w := newClientConn(conn)
	defer context.AfterFunc(ctx, func() { w.breakOff(q.undoTimeout) })()
	defer context.AfterFunc(c.ctx, func() { conn.Close() })()
	go func() { // nothing waits for it: it may block in the caller's Reader after the server refused
		if w.writeRequest(req.WithContext(context.WithoutCancel(ctx))) != nil {
			w.breakOff(q.undoTimeout)
		}
	}()
	resp, err := w.readResponse(req)
	if failed := src.readFailure(); failed != nil {
		return ctxErr(ctx, failed)
	}
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() && ctx.Err() != nil {
		return atoll.Errorf(q.op, q.id, atoll.KindOf(ctx.Err()), "%w, and the server did not confirm within %s that the request was undone", ctx.Err(), q.undoTimeout)
	}
	if err != nil {
		return c.wrapConnError(ctx, q.op, q.id, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return ctxErr(ctx, c.backOffIfClosing(resp, readError(resp, q.op, q.id)))
	}
	return c.readReply(ctx, resp, q)
}

// breakOff closes the write half, so that the server undoes the request, and bounds the wait for
// the response.
func (w *clientConn) breakOff(undo time.Duration) {
	_ = w.SetReadDeadline(time.Now().Add(undo))
	if w.CloseWrite() != nil {
		w.Close()
	}
}

// readReply decodes the reply of a successful call.
func (c *Client) readReply(ctx context.Context, resp *http.Response, q call) error {
	if q.reply == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // lets http.Transport reuse the connection
		return nil
	}
	most := cmp.Or(q.replyLimit, maxReply)
	reply, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if int64(len(reply)) > most {
		return atoll.Errorf(q.op, q.id, atoll.ErrExhausted, "the server's response is larger than %s", atoll.Bytes(most))
	}
	if err == nil {
		err = json.Unmarshal(reply, q.reply)
	}
	return c.wrapConnError(ctx, q.op, q.id, err)
}

// A bodySource records the error of a request body.
type bodySource struct {
	r io.Reader

	mu  sync.Mutex
	err error
}

func (s *bodySource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

// WriteTo implements io.WriterTo, so that net/http uses a large buffer.
func (s *bodySource) WriteTo(w io.Writer) (int64, error) {
	return copyBuffer(w, struct{ io.Reader }{s})
}

func (s *bodySource) readFailure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// sizeOf returns the number of bytes that r will return, or -1 if unknown.
func sizeOf(r io.Reader) int64 {
	switch r := r.(type) {
	case *bytes.Buffer:
		return int64(r.Len())
	case *bytes.Reader:
		return int64(r.Len())
	case *strings.Reader:
		return int64(r.Len())
	case *os.File:
		fi, err := r.Stat()
		if err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 {
			return -1
		}
		at, err := r.Seek(0, io.SeekCurrent)
		if err != nil || at > fi.Size() {
			return -1
		}
		return fi.Size() - at
	}
	return -1
}
